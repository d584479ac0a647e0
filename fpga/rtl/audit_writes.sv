// The write half of an auditor. A burst is collected as a whole before any of it leaves: an accelerator that stops in the
// middle of one, or is reset there, holds up nobody else. A fence is answered when no write is under way; it does not leave.
module audit_writes #(
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

    // From the accelerator, one line per beat; address, lines and tag are read with the first beat of a burst.
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

    // To the tree.
    output logic               out_valid,
    input  logic               out_ready,
    output logic [PORT-1:0]    out_port,
    output logic [TAG-1:0]     out_tag,
    output logic [1:0]         out_lines,
    output logic [ADDRESS-1:0] out_address,
    output logic               out_first,
    output logic               out_last,
    output logic [DATA-1:0]    out_data,

    // Responses of all ports.
    input  logic               b_valid,
    input  logic [PORT-1:0]    b_port,
    input  logic [TAG-1:0]     b_tag,
    input  logic               b_error,

    output logic               wants,
    output logic [1:0]         wants_lines,
    input  logic               permit,
    // A burst passed the rate limit.
    output logic               leaves,

    output logic               refused,
    output line_pkg::fault_t   refused_fault,
    output logic [ADDRESS-1:0] refused_address,
    output logic [1:0]         refused_lines,
    output logic               idle,
    output logic               line_written
);
    import line_pkg::*;
    localparam int COUNT = $clog2(UNDERWAY + 1);
    // Beats that are buffered: two bursts, so that one is collected while the other leaves.
    localparam int DEPTH = 8;
    localparam int HEAD  = TAG + 2 + ADDRESS + 2;

    logic               held, held_first, held_fence;
    logic [ADDRESS-1:0] held_address, held_sum;
    logic [1:0]         held_lines;
    logic [TAG-1:0]     held_tag;
    logic [DATA-1:0]    held_data;

    // Place in the burst of the accelerator: beats that are still to come, and if they are dropped.
    logic [1:0]         left;
    logic               dropping;
    logic [1:0]         burst_lines;
    logic [TAG-1:0]     burst_tag;
    logic [ADDRESS-1:0] burst_sum;

    fault_t             check_fault, fault, dropped_fault;
    logic [ADDRESS-1:0] dropped_address;
    logic [COUNT-1:0]   underway;
    logic               mine;

    // Indices of the buffer with one bit more than it needs: where the next beat is put, up to where bursts are complete, and
    // which beat leaves next.
    logic [3:0]         put, complete, get;
    logic [3:0]         used;
    (* ramstyle = "MLAB" *) logic [HEAD+DATA-1:0] buffer[DEPTH];

    logic begins, header, follows, last_beat, push, consume, answer, answer_error, space;

    slice_check #(.ADDRESS(ADDRESS)) check (
        .enable, .first, .last, .address(held_sum), .lines(held_lines), .fault(check_fault)
    );
    assign fault = held_first ? check_fault : FAULT_BURST;

    assign used = put - get;
    assign space = {1'b0, used} + 5'(held_lines) < 5'(DEPTH);
    assign mine = b_valid && b_port == port;

    assign begins  = held && !hold && left == 2'd0;
    assign header  = begins && !held_fence;
    assign follows = held && !hold && left != 2'd0;

    assign wants = header && fault == FAULT_NONE && space && underway != COUNT'(UNDERWAY);
    assign wants_lines = held_lines;
    assign leaves = wants && permit;
    assign push = leaves || (follows && !dropping);
    assign last_beat = leaves ? held_lines == 2'd0 : left == 2'd1;

    // Responses that the auditor gives itself wait for a cycle without one of memory.
    always_comb begin
        answer = 1'b0;
        answer_error = 1'b1;
        consume = push;
        if (begins && held_fence) begin
            answer = underway == '0 && !mine;
            answer_error = 1'b0;
            consume = answer;
        end else if (header && fault != FAULT_NONE) begin
            // Without `wr_first` nothing tells how many beats follow: each stands alone.
            answer = !mine && (held_lines == 2'd0 || !held_first);
            consume = answer || (held_lines != 2'd0 && held_first);
        end else if (follows && dropping) begin
            answer = !mine && left == 2'd1;
            consume = answer || left != 2'd1;
        end
    end
    assign wr_ready = !hold && (!held || consume);
    assign idle = underway == '0 && !held && left == 2'd0;

    assign refused = answer && answer_error;
    assign refused_fault = follows ? dropped_fault : fault;
    assign refused_address = follows ? dropped_address : held_address;
    assign refused_lines = follows ? burst_lines : held_lines;

    always_ff @(posedge clk) begin
        if (reset || hold) held <= 1'b0;
        else if (wr_valid && wr_ready) held <= 1'b1;
        else if (consume) held <= 1'b0;
        if (wr_valid && wr_ready) begin
            held_first   <= wr_first;
            held_fence   <= wr_fence;
            held_address <= wr_address;
            held_sum     <= wr_address + offset;
            held_lines   <= wr_lines;
            held_tag     <= wr_tag;
            held_data    <= wr_data;
        end

        if (reset || hold) begin
            left     <= 2'd0;
            dropping <= 1'b0;
        end else if (header && consume) begin
            // A refused burst of an impossible number of lines is dropped like any other.
            left     <= (fault != FAULT_NONE && !held_first) ? 2'd0 : held_lines;
            dropping <= fault != FAULT_NONE;
        end else if (follows && consume) begin
            left <= left - 2'd1;
        end
        if (header && consume) begin
            burst_lines     <= held_lines;
            burst_tag       <= held_tag;
            burst_sum       <= held_sum;
            dropped_fault   <= fault;
            dropped_address <= held_address;
        end

        if (reset) put <= '0;
        // A burst that was not complete when the port was reset is forgotten.
        else if (hold) put <= complete;
        else if (push) put <= put + 4'd1;
        if (reset) complete <= '0;
        else if (push && last_beat) complete <= put + 4'd1;
        if (reset) get <= '0;
        else if (out_valid && out_ready) get <= get + 4'd1;
        if (push)
            buffer[put[2:0]] <= {
                leaves ? held_tag : burst_tag, leaves ? held_lines : burst_lines,
                leaves ? held_sum : burst_sum, leaves, last_beat, held_data
            };

        if (reset) underway <= '0;
        else underway <= underway + COUNT'(push && last_beat) - COUNT'(mine && underway != '0);

        done_valid <= !reset && !hold && (mine || answer);
        done_tag   <= mine ? b_tag : follows ? burst_tag : held_tag;
        done_error <= mine ? b_error : answer_error;
    end

    assign out_valid = get != complete;
    assign out_port = port;
    assign {out_tag, out_lines, out_address, out_first, out_last, out_data} = buffer[get[2:0]];
    assign line_written = out_valid && out_ready;

`ifdef PROVE_AUDIT_WRITES
    `include "audit_writes_proof.svh"
`endif
endmodule
