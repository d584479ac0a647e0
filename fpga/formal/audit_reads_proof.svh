// Proofs (a) and (b) for reads.
`include "started.svh"
`include "slice_environment.svh"

// Requests that left and are not answered, as the world outside counts them. It answers only what it got.
wire f_of_port = r_valid && r_port == port;
logic [COUNT+3:0] f_outstanding;
always_ff @(posedge clk)
    if (reset) f_outstanding <= '0;
    else f_outstanding <= f_outstanding + (COUNT + 4)'(out_valid && out_ready) - (COUNT + 4)'(f_of_port && r_last);
always_comb if (f_of_port) assume (f_outstanding != '0);

wire f_spare_valid = out_stage.spare_valid;
wire [PORT+TAG+2+ADDRESS-1:0] f_spare = out_stage.spare;

// (a) No request leaves outside the slice or with another port's number.
always_comb
    if (f_started) begin
        if (out_valid) assert (f_fits(out_address, out_lines) && out_port == port);
        if (f_spare_valid)
            assert (out_valid && f_fits(f_spare[ADDRESS-1:0], f_spare[ADDRESS+:2]) && f_spare[ADDRESS+2+TAG+:PORT] == port);
    end

// (b) The count of requests under way is exact, so `idle` is true only if nothing is; then no answer can come.
always_comb
    if (f_started) begin
        assert ((COUNT + 4)'(underway) == f_outstanding + (COUNT + 4)'(out_valid) + (COUNT + 4)'(f_spare_valid));
        assert (underway <= COUNT'(UNDERWAY) && f_outstanding <= (COUNT + 4)'(UNDERWAY));
        if (idle) assert (f_outstanding == '0 && !out_valid);
        // The next owner of the port begins with nothing under way.
        if (f_hold && !hold) assert (underway == '0 && !held);
    end

// (b) A response that passes is the port's own, of this owner, or the auditor's refusal, which carries no data.
logic f_mine, f_inject, f_error;
logic [TAG-1:0] f_tag;
logic [DATA-1:0] f_data;
always_ff @(posedge clk) begin
    f_mine   <= f_of_port && !hold && !reset;
    f_inject <= inject && !reset;
    f_tag    <= r_tag;
    f_data   <= r_data;
    f_error  <= r_error;
end
always_comb
    if (f_started && rsp_valid) begin
        assert (f_mine || f_inject);
        assert (!f_hold);
        if (f_mine) assert (rsp_tag == f_tag && rsp_data == f_data && rsp_error == f_error);
        else assert (rsp_error && rsp_data == '0);
    end

// The request that the auditor holds, as the accelerator asked, with its address translated; and what left, in order.
localparam int F_REQUEST = TAG + 2 + ADDRESS;
logic [TAG-1:0] f_held_tag;
logic [1:0] f_held_lines;
logic [ADDRESS-1:0] f_held_address, f_held_sum;
logic f_holds;
logic [3:0][F_REQUEST-1:0] f_queue;
logic [1:0] f_put, f_get;
wire f_left = f_holds && !hold && out_stage.in_valid && out_stage.in_ready;
wire f_told = f_holds && !hold && refused;
always_ff @(posedge clk) begin
    if (reset || hold) f_holds <= 1'b0;
    else if (rd_valid && rd_ready) f_holds <= 1'b1;
    else if (f_left || f_told) f_holds <= 1'b0;
    if (rd_valid && rd_ready) begin
        f_held_tag     <= rd_tag;
        f_held_lines   <= rd_lines;
        f_held_address <= rd_address;
        f_held_sum     <= rd_address + offset;
    end
    if (reset) {f_put, f_get} <= '0;
    else begin
        if (f_left) begin
            f_queue[f_put] <= {f_held_tag, f_held_lines, f_held_sum};
            f_put <= f_put + 2'd1;
        end
        if (out_valid && out_ready) f_get <= f_get + 2'd1;
    end
end
always_comb
    if (f_started) begin
        assert (held == f_holds);
        if (f_holds) assert ({held_tag, held_lines, held_address, held_sum} == {f_held_tag, f_held_lines, f_held_address, f_held_sum});
        // Nothing is lost, duplicated, invented, changed or reordered.
        assert (2'(f_put - f_get) == 2'(out_valid) + 2'(f_spare_valid));
        if (out_valid) assert ({out_tag, out_lines, out_address} == f_queue[f_get]);
        if (f_spare_valid) assert (f_spare[F_REQUEST-1:0] == f_queue[2'(f_get + 2'd1)]);
        // A request leaves if and only if it fits the slice; one that may leave does, and another is taken in the same cycle.
        if (f_holds && !hold) begin
            if (f_left) assert (f_fits(f_held_sum, f_held_lines));
            if (f_told) assert (!f_fits(f_held_sum, f_held_lines));
            if (f_fits(f_held_sum, f_held_lines) && !f_spare_valid && underway != COUNT'(UNDERWAY) && permit) assert (f_left);
            if (f_left) assert (rd_ready);
        end
        if (!hold && !f_holds) assert (rd_ready);
        if (hold) assert (!rd_ready && !f_left && !refused);
        if (refused) assert (refused_address == f_held_address && refused_lines == f_held_lines && refused_fault != FAULT_NONE);
    end

// A refused request is answered line by line, in order, with its tag, in each cycle without a response of memory.
logic [1:0] f_answer, f_line, f_r_line;
logic [TAG-1:0] f_answer_tag;
wire f_refuses = f_holds && !hold && !f_fits(f_held_sum, f_held_lines);
always_ff @(posedge clk) begin
    if (reset || hold || f_told) f_answer <= 2'd0;
    else if (f_refuses && !f_of_port) f_answer <= f_answer + 2'd1;
    f_line       <= f_answer;
    f_answer_tag <= f_held_tag;
    f_r_line     <= r_line;
end
always_comb
    if (f_started) begin
        assert (inject == (f_refuses && !f_of_port));
        assert (refused == (inject && f_answer == f_held_lines));
        assert (refused_line == f_answer && (f_answer == 2'd0 || (f_holds && f_answer <= f_held_lines && !f_fits(f_held_sum, f_held_lines))));
        assert (rsp_valid == (f_mine || (f_inject && !f_hold)));
        if (rsp_valid) assert (rsp_line == (f_mine ? f_r_line : f_line));
        if (rsp_valid && !f_mine) assert (rsp_tag == f_answer_tag);
    end

wire f_cover_leaves = f_started && out_valid && out_ready;
wire f_cover_full = f_started && underway == COUNT'(UNDERWAY);
wire f_cover_refused = f_started && refused && refused_fault == FAULT_ABOVE;
wire f_cover_answered = f_started && rsp_valid && !rsp_error;
wire f_cover_lines = f_started && rsp_valid && !f_mine && rsp_line == 2'd3 && f_left;
wire f_cover_new_owner = f_started && f_hold && !hold && f_quiet && first != f_first;

`include "reach.svh"
