// The read half of an auditor: translates, checks and counts an accelerator's read requests, and picks its responses from those
// of all ports. Two register stages on the way out (add; check and leave), one on the way back.
module audit_reads #(
    parameter int ADDRESS  = line_pkg::ADDRESS,
    parameter int TAG      = line_pkg::TAG,
    parameter int DATA     = line_pkg::DATA,
    parameter int PORT     = line_pkg::PORT,
    parameter int UNDERWAY = 256
) (
    input  logic               clk,
    input  logic               reset,
    input  logic [PORT-1:0]    port,
    // The port is in reset: nothing is accepted and no response passes.
    input  logic               hold,
    input  logic               enable,
    input  logic [ADDRESS-1:0] offset,
    input  logic [ADDRESS-1:0] first,
    input  logic [ADDRESS-1:0] last,

    // From the accelerator; guest virtual line addresses.
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

    // To the tree.
    output logic               out_valid,
    input  logic               out_ready,
    output logic [PORT-1:0]    out_port,
    output logic [TAG-1:0]     out_tag,
    output logic [1:0]         out_lines,
    output logic [ADDRESS-1:0] out_address,

    // Responses of all ports.
    input  logic               r_valid,
    input  logic [PORT-1:0]    r_port,
    input  logic [TAG-1:0]     r_tag,
    input  logic [1:0]         r_line,
    input  logic               r_last,
    input  logic               r_error,
    input  logic [DATA-1:0]    r_data,

    // A request that may leave as far as the slice is concerned, and the permission of the rate limit.
    output logic               wants,
    output logic [1:0]         wants_lines,
    input  logic               permit,
    output logic               leaves,

    // One pulse for each refused request, with what it asked for.
    output logic               refused,
    output line_pkg::fault_t   refused_fault,
    output logic [ADDRESS-1:0] refused_address,
    output logic [1:0]         refused_lines,
    output logic               idle,
    output logic               line_read
);
    import line_pkg::*;
    localparam int COUNT = $clog2(UNDERWAY + 1);

    logic               held;
    logic [ADDRESS-1:0] held_address, held_sum;
    logic [1:0]         held_lines;
    logic [TAG-1:0]     held_tag;
    logic               held_leaves;
    fault_t             fault;
    logic [COUNT-1:0]   underway;
    logic               room, mine, inject;
    logic [1:0]         refused_line;

    slice_check #(.ADDRESS(ADDRESS)) check (
        .enable, .first, .last, .address(held_sum), .lines(held_lines), .fault
    );

    assign mine = r_valid && r_port == port;
    assign line_read = mine;
    // A refused request is answered, line by line, in cycles without a response of memory.
    assign inject = held && !hold && fault != FAULT_NONE && !mine;
    assign refused = inject && refused_line == held_lines;
    assign refused_fault = fault;
    assign refused_address = held_address;
    assign refused_lines = held_lines;

    assign wants = held && !hold && fault == FAULT_NONE && room && underway != COUNT'(UNDERWAY);
    assign wants_lines = held_lines;
    assign leaves = wants && permit;
    assign held_leaves = leaves || refused;
    assign rd_ready = !hold && (!held || held_leaves);
    assign idle = underway == '0 && !held;

    always_ff @(posedge clk) begin
        if (reset || hold) held <= 1'b0;
        else if (rd_valid && rd_ready) held <= 1'b1;
        else if (held_leaves) held <= 1'b0;
        if (rd_valid && rd_ready) begin
            held_address <= rd_address;
            held_sum     <= rd_address + offset;
            held_lines   <= rd_lines;
            held_tag     <= rd_tag;
        end
        if (reset || hold || refused) refused_line <= '0;
        else if (inject) refused_line <= refused_line + 1'b1;

        if (reset) underway <= '0;
        else underway <= underway + COUNT'(leaves) - COUNT'(mine && r_last && underway != '0);
    end

    stage #(.WIDTH(PORT + TAG + 2 + ADDRESS)) out_stage (
        .clk, .reset,
        .in_valid (leaves),
        .in_ready (room),
        .in_item  ({port, held_tag, held_lines, held_sum}),
        .out_valid, .out_ready,
        .out_item ({out_port, out_tag, out_lines, out_address})
    );

    always_ff @(posedge clk) begin
        rsp_valid <= !reset && !hold && (mine || inject);
        rsp_tag   <= mine ? r_tag : held_tag;
        rsp_line  <= mine ? r_line : refused_line;
        rsp_error <= mine ? r_error : 1'b1;
        // Without a response of its own a port sees zeros, never a neighbour's line.
        if (mine) rsp_data <= r_data;
        else if (inject) rsp_data <= '0;
    end

`ifdef PROVE_AUDIT_READS
    `include "audit_reads_proof.svh"
`endif
endmodule
