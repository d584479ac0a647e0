// Proof of what an auditor's halves share: under a limit one request leaves in a cycle, pays for its own lines, and reads and writes
// take turns; the fault record is the first refused request since it was cleared.
`include "started.svh"

logic f_wrote_last;
always_ff @(posedge clk)
    if (reset) f_wrote_last <= 1'b0;
    else if (read_leaves || write_leaves) f_wrote_last <= write_leaves;
always_comb
    if (f_started && rate != '0) begin
        assert (!(read_leaves && write_leaves));
        if (read_leaves) assert (limit.take && limit.allowed && limit.lines == reads.held_lines);
        if (write_leaves) assert (limit.take && limit.allowed && limit.lines == writes.held_lines);
        // Of two that want to leave, the one whose kind did not leave last.
        if (read_leaves && write_wants) assert (f_wrote_last);
        if (write_leaves && read_wants) assert (!f_wrote_last);
        // A request that wants to leave does, or one of the other kind, or the limit forbids it.
        if (allowed && (read_wants || write_wants)) assert (read_leaves || write_leaves);
    end
always_comb
    if (f_started && rate == '0) assert (read_leaves == read_wants && write_leaves == write_wants);

logic f_valid, f_write;
fault_t f_kind;
logic [1:0] f_lines;
logic [ADDRESS-1:0] f_address;
always_ff @(posedge clk)
    if (reset || fault_clear) f_valid <= 1'b0;
    else if (!f_valid && (reads.refused || writes.refused)) begin
        f_valid <= 1'b1;
        if (reads.refused) {f_write, f_kind, f_lines, f_address} <= {1'b0, reads.refused_fault, reads.held_lines, reads.held_address};
        else {f_write, f_kind, f_lines, f_address} <= {1'b1, writes.refused_fault, writes.refused_lines, writes.refused_address};
    end
always_comb
    if (f_started) begin
        assert (fault_valid == f_valid);
        if (f_valid) assert ({fault_write, fault_kind, fault_lines, fault_address} == {f_write, f_kind, f_lines, f_address});
        assert (read_refused == reads.refused && write_refused == writes.refused);
        assert (drained == (reads.idle && writes.idle));
        if (read_valid) assert (read_item == {reads.out_port, reads.out_tag, reads.out_lines, reads.out_address});
        if (write_valid)
            assert (write_item == {writes.out_port, writes.out_tag, writes.out_lines, writes.out_address, writes.out_first, writes.out_data});
    end

wire f_cover_turns = f_started && rate != '0 && read_leaves && write_wants;
wire f_cover_fault = f_started && fault_valid && fault_write && read_refused;

`include "reach.svh"
