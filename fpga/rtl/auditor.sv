// The guard of one port: both halves, the rate limit that they share, the record of the first refused request.
module auditor #(
    parameter int ADDRESS  = line_pkg::ADDRESS,
    parameter int TAG      = line_pkg::TAG,
    parameter int DATA     = line_pkg::DATA,
    parameter int PORT     = line_pkg::PORT,
    parameter int UNDERWAY = 256
) (
    input  logic               clk,
    input  logic               reset,
    input  logic [PORT-1:0]    port,
    input  logic               hold,
    input  logic               enable,
    input  logic [ADDRESS-1:0] offset,
    input  logic [ADDRESS-1:0] first,
    input  logic [ADDRESS-1:0] last,
    // Lines per 1,024 cycles, 0 for no limit.
    input  logic [10:0]        rate,
    input  logic               fault_clear,
    output logic               drained,

    input  logic               rd_valid,
    output logic               rd_ready,
    input  logic [ADDRESS-1:0] rd_address,
    input  logic [1:0]         rd_lines,
    input  logic [TAG-1:0]     rd_tag,
    output logic               rsp_valid,
    output logic [TAG-1:0]     rsp_tag,
    output logic [1:0]         rsp_line,
    output logic               rsp_error,
    output logic [DATA-1:0]    rsp_data,

    input  logic               wr_valid,
    output logic               wr_ready,
    input  logic               wr_first,
    input  logic               wr_fence,
    input  logic [ADDRESS-1:0] wr_address,
    input  logic [1:0]         wr_lines,
    input  logic [TAG-1:0]     wr_tag,
    input  logic [DATA-1:0]    wr_data,
    output logic               done_valid,
    output logic [TAG-1:0]     done_tag,
    output logic               done_error,

    output logic                              read_valid,
    input  logic                              read_ready,
    output logic [1:0]                        read_lines,
    output logic [PORT+TAG+2+ADDRESS-1:0]     read_item,
    output logic                              write_valid,
    input  logic                              write_ready,
    output logic [1:0]                        write_lines,
    output logic                              write_last,
    output logic [PORT+TAG+2+ADDRESS+1+DATA-1:0] write_item,

    input  logic               r_valid,
    input  logic [PORT-1:0]    r_port,
    input  logic [TAG-1:0]     r_tag,
    input  logic [1:0]         r_line,
    input  logic               r_last,
    input  logic               r_error,
    input  logic [DATA-1:0]    r_data,
    input  logic               b_valid,
    input  logic [PORT-1:0]    b_port,
    input  logic [TAG-1:0]     b_tag,
    input  logic               b_error,

    // The first refused request since `fault_clear`, and one pulse per refused read and write.
    output logic               fault_valid,
    output line_pkg::fault_t   fault_kind,
    output logic               fault_write,
    output logic [1:0]         fault_lines,
    output logic [ADDRESS-1:0] fault_address,
    output logic               read_refused,
    output logic               write_refused,
    output logic               line_read,
    output logic               line_written,
    // A request waits in this cycle.
    output logic               stalled
);
    import line_pkg::*;

    logic read_wants, read_permit, read_leaves, read_idle;
    logic write_wants, write_permit, write_leaves, write_idle;
    logic [1:0] read_wants_lines, write_wants_lines;
    fault_t read_fault, write_fault;
    logic [ADDRESS-1:0] read_fault_address, write_fault_address;
    logic [1:0] read_fault_lines, write_fault_lines;
    logic allowed, reads_turn, read_chosen;

    logic [PORT-1:0] read_port, write_port;
    logic [TAG-1:0] read_tag, write_tag;
    logic [ADDRESS-1:0] read_address, write_address;
    logic write_first;
    logic [DATA-1:0] write_data;

    audit_reads #(.ADDRESS(ADDRESS), .TAG(TAG), .DATA(DATA), .PORT(PORT), .UNDERWAY(UNDERWAY)) reads (
        .clk, .reset, .port, .hold, .enable, .offset, .first, .last,
        .rd_valid, .rd_ready, .rd_address, .rd_lines, .rd_tag,
        .rsp_valid, .rsp_tag, .rsp_line, .rsp_error, .rsp_data,
        .out_valid(read_valid), .out_ready(read_ready), .out_port(read_port), .out_tag(read_tag),
        .out_lines(read_lines), .out_address(read_address),
        .r_valid, .r_port, .r_tag, .r_line, .r_last, .r_error, .r_data,
        .wants(read_wants), .wants_lines(read_wants_lines), .permit(read_permit), .leaves(read_leaves),
        .refused(read_refused), .refused_fault(read_fault), .refused_address(read_fault_address),
        .refused_lines(read_fault_lines), .idle(read_idle), .line_read
    );
    assign read_item = {read_port, read_tag, read_lines, read_address};

    audit_writes #(.ADDRESS(ADDRESS), .TAG(TAG), .DATA(DATA), .PORT(PORT), .UNDERWAY(UNDERWAY)) writes (
        .clk, .reset, .port, .hold, .enable, .offset, .first, .last,
        .wr_valid, .wr_ready, .wr_first, .wr_fence, .wr_address, .wr_lines, .wr_tag, .wr_data,
        .done_valid, .done_tag, .done_error,
        .out_valid(write_valid), .out_ready(write_ready), .out_port(write_port), .out_tag(write_tag),
        .out_lines(write_lines), .out_address(write_address), .out_first(write_first), .out_last(write_last),
        .out_data(write_data),
        .b_valid, .b_port, .b_tag, .b_error,
        .wants(write_wants), .wants_lines(write_wants_lines), .permit(write_permit), .leaves(write_leaves),
        .refused(write_refused), .refused_fault(write_fault), .refused_address(write_fault_address),
        .refused_lines(write_fault_lines), .idle(write_idle), .line_written
    );
    assign write_item = {write_port, write_tag, write_lines, write_address, write_first, write_data};

    // With a limit one request leaves per cycle, and reads and writes that both wait take turns.
    assign read_chosen = read_wants && (!write_wants || reads_turn);
    assign read_permit = rate == '0 || (allowed && read_chosen);
    assign write_permit = rate == '0 || (allowed && !read_chosen);
    bucket limit (
        .clk, .reset, .rate,
        .lines(read_chosen ? read_wants_lines : write_wants_lines),
        .take(read_leaves || write_leaves),
        .allowed
    );
    always_ff @(posedge clk)
        if (reset) reads_turn <= 1'b0;
        else if (read_leaves || write_leaves) reads_turn <= write_leaves;

    assign drained = read_idle && write_idle;
    assign stalled = (rd_valid && !rd_ready) || (wr_valid && !wr_ready);

    always_ff @(posedge clk) begin
        if (reset || fault_clear) fault_valid <= 1'b0;
        else if (read_refused || write_refused) fault_valid <= 1'b1;
        if (!fault_valid) begin
            fault_kind    <= read_refused ? read_fault : write_fault;
            fault_write   <= !read_refused;
            fault_lines   <= read_refused ? read_fault_lines : write_fault_lines;
            fault_address <= read_refused ? read_fault_address : write_fault_address;
        end
    end

`ifdef PROVE_AUDITOR
    `include "auditor_proof.svh"
`endif
endmodule
