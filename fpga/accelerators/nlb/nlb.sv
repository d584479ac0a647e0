// NLB: OPAE's native loopback. Copies NUM_LINES lines, or only reads or writes them, and then writes a line of results to the
// second line of DSM_BASE. SRC_ADDR and DST_ADDR count lines, DSM_BASE bytes. CFG: bit 1 goes on until it is stopped, bits 2-4
// are the mode (0 copies, 1 reads, 2 writes, 3 does both without copying). CTL: bit 0 takes it out of reset, bit 1 starts,
// bit 2 stops.
module nlb (
`include "accelerator_ports.svh"
);
    import line_pkg::*;
    // Lines that are read ahead. All of them are read again after a pause.
    localparam int DEPTH = 64;
    localparam int SLOT = $clog2(DEPTH);
    localparam logic [2:0] COPY = 3'd0, READ = 3'd1, WRITE = 3'd2, BOTH = 3'd3;

    logic k_start, k_load, k_run, k_finished, k_select, k_rd_valid, k_rd_ready, k_rsp_valid, k_wr_valid, k_wr_ready, k_done_valid;
    logic [63:0] k_value, scratch, dsm, source, target, lines, ctl, cfg, threshold, interrupt;

    // State: the result is written; cycles, lines read and lines written since the start; lines of this pass that were taken and
    // written.
    logic        reported;
    logic [63:0] clocks;
    logic [31:0] reads, writes, taken, put;
    localparam int STATE = 1 + 64 + 4 * 32;
    logic [STATE-1:0] k_loaded, k_state;
    assign k_state = {reported, clocks, reads, writes, taken, put};

    // Not saved: lines that were asked for and came, requests under way.
    logic [31:0] fetched;
    logic [8:0]  reads_due, writes_due;
    logic [DATA-1:0] slots [DEPTH];
    logic [DEPTH-1:0] full;

    logic [2:0]  mode;
    logic [31:0] count;
    logic begins, live, stop, copying, reading, writing, here, read_over, write_over, pass_over, again, reporting, asks, takes, puts;

    job_shell #(.GUID(128'hd842_4dc4_a4a3_c413_f89e_4336_83f9_040b), .STATE(STATE)) shell (
        .*,
        .k_rd_address(source[ADDRESS-1:0] + ADDRESS'(fetched)), .k_rd_lines(2'd0), .k_rd_tag(TAG'(fetched[SLOT-1:0])),
        .k_wr_first(1'b1), .k_wr_fence(1'b0), .k_wr_lines(2'd0), .k_wr_tag(put[TAG-1:0]),
        .k_wr_address(reporting ? dsm[47:6] + ADDRESS'(1) : target[ADDRESS-1:0] + ADDRESS'(put)),
        .k_wr_data(reporting ? {256'd0, 64'd0, writes, reads, clocks, 31'd0, mode > BOTH, 32'd1}
            : copying ? slots[taken[SLOT-1:0]] : {16{put}})
    );
    plain_register #(.AT(12'h100)) scratch_register (.*, .value(scratch));
    plain_register #(.AT(12'h110)) dsm_register (.*, .value(dsm));
    plain_register #(.AT(12'h120)) source_register (.*, .value(source));
    plain_register #(.AT(12'h128)) target_register (.*, .value(target));
    plain_register #(.AT(12'h130)) lines_register (.*, .value(lines));
    plain_register #(.AT(12'h138)) ctl_register (.*, .value(ctl));
    plain_register #(.AT(12'h140)) cfg_register (.*, .value(cfg));
    plain_register #(.AT(12'h148)) threshold_register (.*, .value(threshold));
    plain_register #(.AT(12'h150)) interrupt_register (.*, .value(interrupt));

    always_comb
        case (address)
            12'h100: k_value = scratch;
            12'h110: k_value = dsm;
            12'h120: k_value = source;
            12'h128: k_value = target;
            12'h130: k_value = lines;
            12'h138: k_value = ctl;
            12'h140: k_value = cfg;
            12'h148: k_value = threshold;
            12'h150: k_value = interrupt;
            12'h160: k_value = {reads, writes};
            12'h168: k_value = {32'(reads_due), 32'(writes_due)};
            default: k_value = '0;
        endcase

    assign mode = cfg[4:2];
    assign count = lines[31:0];
    assign begins = k_start || k_load;
    assign live = !begins && ctl[0] && !reported;
    assign stop = ctl[2];
    assign copying = mode == COPY;
    assign reading = copying || mode == READ || mode == BOTH;
    assign writing = mode == WRITE || mode == BOTH;

    // A pass ends when all of its lines are answered.
    assign here = full[taken[SLOT-1:0]];
    assign read_over = !reading || (taken == fetched && (fetched == count || stop));
    assign write_over = !writing || put == count || stop;
    assign pass_over = read_over && write_over && writes_due == '0;
    assign again = cfg[1] && !stop && mode <= BOTH;
    assign reporting = pass_over && !again;

    assign k_rd_valid = live && reading && !stop && fetched != count && fetched - taken < DEPTH;
    assign k_wr_valid = live && (reporting || (copying ? here : writing && put != count && !stop));
    assign asks = k_rd_valid && k_rd_ready;
    assign puts = k_wr_valid && k_wr_ready;
    assign takes = copying ? puts && !reporting : live && k_run && reading && here;
    assign k_finished = !begins && (reported || !ctl[0]);

    always_ff @(posedge clk) begin
        if (k_rsp_valid) slots[rsp_tag[SLOT-1:0]] <= rsp_data;
        if (reset || begins) {reads_due, writes_due, full} <= '0;
        else begin
            reads_due  <= reads_due + 9'(asks) - 9'(k_rsp_valid);
            writes_due <= writes_due + 9'(puts) - 9'(k_done_valid);
            if (k_rsp_valid) full[rsp_tag[SLOT-1:0]] <= 1'b1;
            if (takes) full[taken[SLOT-1:0]] <= 1'b0;
        end
        if (reset || k_start) begin
            {reported, clocks, reads, writes, taken, put} <= '0;
            fetched <= '0;
        end else if (k_load) begin
            {reported, clocks, reads, writes, taken, put} <= k_loaded;
            fetched <= k_loaded[63:32];
        end else begin
            clocks   <= clocks + 64'(live && k_run);
            reads    <= reads + 32'(takes);
            writes   <= writes + 32'(puts && !reporting);
            reported <= reported || (puts && reporting);
            if (live && k_run && pass_over && again) {fetched, taken, put} <= '0;
            else begin
                fetched <= fetched + 32'(asks);
                taken   <= taken + 32'(takes);
                put     <= put + 32'(puts && !reporting);
            end
        end
    end
endmodule
