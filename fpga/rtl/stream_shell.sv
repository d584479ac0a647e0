// The part that streaming accelerators share: lines are read from SOURCE, handed to a kernel one at a time and in order, and
// the kernel's lines are written to TARGET in order. The kernel's registers change only in cycles with `s_enable`, which stands
// still while the job is paused, so that a job can be saved between any two steps of its kernel: nothing has to drain but the
// requests under way. PERIOD is the number of the monitor's cycles per step: 1, 2 and 4 are clocks of 400, 200 and 100 MHz.
// With BURST 4 lines are read in bursts of four where their addresses allow it, which may be answered in any order.
module stream_shell #(
    parameter logic [127:0] GUID = 128'h0,
    parameter int STATE = 1,
    parameter int PERIOD = 1,
    parameter int BURST = 1
) (
`include "accelerator_ports.svh"
    ,
    // One cycle at the beginning of a job: the kernel takes its registers, or with `s_load` its state.
    output logic             s_start,
    output logic             s_load,
    output logic [STATE-1:0] s_loaded,
    input  logic [STATE-1:0] s_state,
    output logic             s_enable,
    // A line passes in a cycle with valid, ready and `s_enable`. `s_last` says that it is the last one.
    output logic             s_in_valid,
    input  logic             s_in_ready,
    output logic             s_last,
    output logic [line_pkg::DATA-1:0] s_in,
    input  logic             s_out_valid,
    output logic             s_out_ready,
    input  logic [line_pkg::DATA-1:0] s_out,
    // The kernel makes no step until the next line.
    input  logic             s_idle,
    // Registers of the kernel, from 0x100 on; a read is answered in the same cycle.
    output logic             s_select,
    input  logic [63:0]      s_value
);
    import line_pkg::*;
    // Lines that are read ahead; more of them in bursts, which wait longer for a busy link. All are read again after a pause.
    localparam int DEPTH = BURST == 4 ? 128 : 64;
    localparam int SLOT = $clog2(DEPTH);
    localparam int PHASE = PERIOD > 1 ? $clog2(PERIOD) : 1;

    logic k_start, k_load, k_run, k_finished, k_select, k_rd_valid, k_rd_ready, k_rsp_valid, k_wr_valid, k_wr_ready, k_done_valid;
    logic [63:0] k_value, source, target, lines;
    logic [STATE+63:0] k_loaded, k_state;
    logic [31:0] fetched, taken, put;
    logic [DATA-1:0] slots [DEPTH];
    logic [DEPTH-1:0] full;
    logic [PHASE-1:0] phase;
    // A response's place: its burst's first slot and its line.
    logic [SLOT-1:0] slot;
    assign slot = rsp_tag[SLOT-1:0] + SLOT'(rsp_line);
    logic begins, takes, puts;
    // Lines that may be read and that there is room for; the address of the next one; if it begins a burst.
    logic [31:0] left, room;
    logic [ADDRESS-1:0] next;
    logic by_four;
    logic [2:0] asked;

    assign k_state = {taken, put, s_state};
    assign s_start = k_start;
    assign s_load = k_load;
    assign s_loaded = k_loaded[STATE-1:0];
    assign s_select = k_select && address >= 12'h100;
    assign begins = k_start || k_load;

    job_shell #(.GUID(GUID), .STATE(STATE + 64)) jobs (
        .*,
        .k_rd_address(next), .k_rd_lines(by_four ? 2'd3 : 2'd0), .k_rd_tag(TAG'(fetched[SLOT-1:0])),
        .k_wr_first(1'b1), .k_wr_fence(1'b0), .k_wr_address(target[47:6] + ADDRESS'(put)), .k_wr_lines(2'd0),
        .k_wr_tag(put[TAG-1:0]), .k_wr_data(s_out)
    );
    plain_register #(.AT(12'h040)) source_register (.*, .value(source));
    plain_register #(.AT(12'h048)) target_register (.*, .value(target));
    plain_register #(.AT(12'h050)) lines_register (.*, .value(lines));

    always_comb
        case (address)
            12'h040: k_value = source;
            12'h048: k_value = target;
            12'h050: k_value = lines;
            12'h080: k_value = 64'(taken);
            12'h088: k_value = 64'(put);
            default: k_value = address >= 12'h100 ? s_value : '0;
        endcase

    assign s_enable = k_run && !begins && phase == '0;
    assign left = lines[31:0] - fetched;
    assign room = 32'(DEPTH) - (fetched - taken);
    assign next = source[47:6] + ADDRESS'(fetched);
    // What is left and the address do not change while a request waits, so its shape does not.
    assign by_four = BURST == 4 && next[1:0] == 2'd0 && left >= 32'd4;
    assign asked = by_four ? 3'd4 : 3'd1;
    assign k_rd_valid = !begins && left != '0 && room >= 32'(asked);
    assign s_in_valid = full[taken[SLOT-1:0]];
    assign s_in = slots[taken[SLOT-1:0]];
    assign s_last = taken + 32'd1 == lines[31:0];
    assign takes = s_enable && s_in_valid && s_in_ready;
    assign k_wr_valid = s_enable && s_out_valid;
    assign s_out_ready = k_wr_ready;
    assign puts = k_wr_valid && k_wr_ready;
    assign k_finished = !begins && taken == lines[31:0] && s_idle && !s_out_valid;

    always_ff @(posedge clk) begin
        if (k_rsp_valid) slots[slot] <= rsp_data;
        phase <= (reset || begins || phase == PHASE'(PERIOD - 1)) ? '0 : phase + 1'b1;
        if (reset || k_start) {fetched, taken, put} <= '0;
        else if (k_load) {fetched, taken, put} <= {k_loaded[STATE+63-:32], k_loaded[STATE+:64]};
        else begin
            fetched <= fetched + (k_rd_valid && k_rd_ready ? 32'(asked) : 32'd0);
            taken   <= taken + 32'(takes);
            put     <= put + 32'(puts);
        end
        if (reset || begins) full <= '0;
        else begin
            if (k_rsp_valid) full[slot] <= 1'b1;
            if (takes) full[taken[SLOT-1:0]] <= 1'b0;
        end
    end
endmodule
