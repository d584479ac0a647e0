// The hardware monitor: one AXI4 manager and one AXI4-Lite subordinate towards the shell, PORTS accelerators on the other side.
// With BYPASS there is no auditor and no tree: one accelerator at the shell's ports, the baseline of measurements.
module monitor #(
    parameter int PORTS       = 8,
    parameter int ARITY       = 2,
    parameter bit WEIGHTED    = 1'b0,
    parameter bit BYPASS      = 1'b0,
    parameter int SHELL_PAGES = 0,
    parameter int MMIO_BITS   = 20,
    parameter int ADDRESS     = line_pkg::ADDRESS,
    parameter int TAG         = line_pkg::TAG,
    parameter int DATA        = line_pkg::DATA,
    parameter int PORT        = line_pkg::PORT,
    parameter int UNDERWAY    = 256,
    parameter logic [127:0] GUID = 128'h0,
    localparam int ID         = PORT + TAG
) (
    input  logic             clk,
    input  logic             reset,

    // AXI4 manager; 64-byte beats, incrementing bursts of 1, 2 or 4. rready and bready are always 1.
    output logic             arvalid,
    input  logic             arready,
    output logic [ID-1:0]    arid,
    output logic [63:0]      araddr,
    output logic [7:0]       arlen,
    output logic             awvalid,
    input  logic             awready,
    output logic [ID-1:0]    awid,
    output logic [63:0]      awaddr,
    output logic [7:0]       awlen,
    output logic             wvalid,
    input  logic             wready,
    output logic [DATA-1:0]  wdata,
    output logic             wlast,
    input  logic             rvalid,
    input  logic [ID-1:0]    rid,
    input  logic [1:0]       rresp,
    input  logic             rlast,
    input  logic [DATA-1:0]  rdata,
    input  logic             bvalid,
    input  logic [ID-1:0]    bid,
    input  logic [1:0]       bresp,

    // AXI4-Lite subordinate.
    input  logic                 s_awvalid,
    output logic                 s_awready,
    input  logic [MMIO_BITS-1:0] s_awaddr,
    input  logic                 s_wvalid,
    output logic                 s_wready,
    input  logic [63:0]          s_wdata,
    input  logic [7:0]           s_wstrb,
    output logic                 s_bvalid,
    input  logic                 s_bready,
    output logic [1:0]           s_bresp,
    input  logic                 s_arvalid,
    output logic                 s_arready,
    input  logic [MMIO_BITS-1:0] s_araddr,
    output logic                 s_rvalid,
    input  logic                 s_rready,
    output logic [63:0]          s_rdata,
    output logic [1:0]           s_rresp,

    // One pulse per interrupt: vector v of port p is bit 4 p + v.
    output logic [4*PORTS-1:0]   irq,
    // Something is under way, in the monitor or in an accelerator; the clock may stop while this is 0.
    output logic                 busy,

    // Accelerators.
    output logic [PORTS-1:0]              acc_reset,
    input  logic [PORTS-1:0]              acc_running,
    input  logic [PORTS-1:0]              acc_active,
    input  logic [PORTS-1:0]              acc_irq,
    input  logic [PORTS-1:0][1:0]         acc_vector,
    output logic [PORTS-1:0]              acc_select,
    output logic                          acc_write,
    output logic [11:0]                   acc_address,
    output logic [1:0]                    acc_lanes,
    output logic [63:0]                   acc_data,
    input  logic [PORTS-1:0]              acc_answers,
    input  logic [PORTS-1:0][63:0]        acc_value,
    input  logic [PORTS-1:0]              rd_valid,
    output logic [PORTS-1:0]              rd_ready,
    input  logic [PORTS-1:0][ADDRESS-1:0] rd_address,
    input  logic [PORTS-1:0][1:0]         rd_lines,
    input  logic [PORTS-1:0][TAG-1:0]     rd_tag,
    output logic [PORTS-1:0]              rsp_valid,
    output logic [PORTS-1:0][TAG-1:0]     rsp_tag,
    output logic [PORTS-1:0][1:0]         rsp_line,
    output logic [PORTS-1:0]              rsp_error,
    output logic [PORTS-1:0][DATA-1:0]    rsp_data,
    input  logic [PORTS-1:0]              wr_valid,
    output logic [PORTS-1:0]              wr_ready,
    input  logic [PORTS-1:0]              wr_first,
    input  logic [PORTS-1:0]              wr_fence,
    input  logic [PORTS-1:0][ADDRESS-1:0] wr_address,
    input  logic [PORTS-1:0][1:0]         wr_lines,
    input  logic [PORTS-1:0][TAG-1:0]     wr_tag,
    input  logic [PORTS-1:0][DATA-1:0]    wr_data,
    output logic [PORTS-1:0]              done_valid,
    output logic [PORTS-1:0][TAG-1:0]     done_tag,
    output logic [PORTS-1:0]              done_error
);
    import line_pkg::*;
    localparam int READ_ITEM  = ID + 2 + ADDRESS;
    localparam int WRITE_ITEM = ID + 2 + ADDRESS + 1 + DATA;
    localparam int STAGES     = levels(PORTS, ARITY);

    // --- MMIO ---
    logic local_select, local_accepted, outside, router_busy;
    logic [63:0] local_value;
    logic [PORTS-1:0] silent, hold, drained, running, enable, fault_clear;
    logic [PORTS-1:0][ADDRESS-1:0] offset, first, last;
    logic [PORTS-1:0][3:0] weight;
    logic [PORTS-1:0][10:0] rate;
    logic [PORTS-1:0] fault_valid, fault_write, read_refused, write_refused, line_read, line_written, stalled;
    fault_t [PORTS-1:0] fault_kind;
    logic [PORTS-1:0][1:0] fault_lines;
    logic [PORTS-1:0][ADDRESS-1:0] fault_address;

    mmio_router #(.PORTS(PORTS), .BITS(MMIO_BITS), .SHELL_PAGES(SHELL_PAGES)) router (
        .clk, .reset,
        .awvalid(s_awvalid), .awready(s_awready), .awaddr(s_awaddr), .wvalid(s_wvalid), .wready(s_wready), .wdata(s_wdata),
        .wstrb(s_wstrb), .bvalid(s_bvalid), .bready(s_bready), .bresp(s_bresp), .arvalid(s_arvalid), .arready(s_arready),
        .araddr(s_araddr), .rvalid(s_rvalid), .rready(s_rready), .rdata(s_rdata), .rresp(s_rresp),
        .local_select, .local_value, .local_accepted,
        .port_select(acc_select), .access_write(acc_write), .access_address(acc_address), .access_lanes(acc_lanes),
        .access_data(acc_data), .port_answers(acc_answers), .port_value(acc_value), .hold,
        .port_silent(silent), .outside, .busy(router_busy)
    );
    vcu #(.PORTS(PORTS), .ADDRESS(ADDRESS), .GUID(GUID)) control (
        .clk, .reset, .select(local_select), .write(acc_write), .address(acc_address), .lanes(acc_lanes), .data(acc_data),
        .value(local_value), .accepted(local_accepted), .outside, .silent, .drained, .running, .hold, .fault_clear,
        .enable, .offset, .first, .last, .weight, .rate, .fault_valid, .fault_kind, .fault_write, .fault_lines,
        .fault_address, .read_refused, .write_refused, .line_read, .line_written, .stalled
    );
    assign acc_reset = hold;
    assign running = acc_running & ~hold;
    assign busy = router_busy || ((~drained | (acc_active & ~hold)) != '0);

    always_ff @(posedge clk)
        for (int i = 0; i < PORTS; i++)
            irq[4*i+:4] <= (acc_irq[i] && !hold[i] && !reset) ? 4'b1 << acc_vector[i] : 4'b0;

    // --- memory ---
    logic read_valid, read_ready, write_valid, write_ready, write_last;
    logic [READ_ITEM-1:0] read_item;
    logic [WRITE_ITEM-1:0] write_item;
    logic r_valid, r_last, r_error, b_valid, b_error;
    logic [ID-1:0] r_id, b_id;
    logic [1:0] r_line;
    logic [DATA-1:0] r_data;

    axi_edge #(.ADDRESS(ADDRESS), .DATA(DATA), .ID(ID)) edge_of_shell (
        .clk, .reset,
        .read_valid, .read_ready,
        .read_id(read_item[READ_ITEM-1-:ID]), .read_lines(read_item[ADDRESS+:2]), .read_address(read_item[ADDRESS-1:0]),
        .write_valid, .write_ready,
        .write_id(write_item[WRITE_ITEM-1-:ID]), .write_lines(write_item[DATA+1+ADDRESS+:2]),
        .write_address(write_item[DATA+1+:ADDRESS]), .write_first(write_item[DATA]), .write_last,
        .write_data(write_item[DATA-1:0]),
        .arvalid, .arready, .arid, .araddr, .arlen, .awvalid, .awready, .awid, .awaddr, .awlen, .wvalid, .wready, .wdata, .wlast,
        .rvalid, .rid, .rresp, .rlast, .rdata, .bvalid, .bid, .bresp,
        .r_valid, .r_id, .r_line, .r_last, .r_error, .r_data, .b_valid, .b_id, .b_error
    );

    if (BYPASS) begin : bypass
        pass_through #(.ADDRESS(ADDRESS), .TAG(TAG), .DATA(DATA), .PORT(PORT)) direct (
            .clk, .reset, .hold(hold[0]), .drained(drained[0]),
            .rd_valid(rd_valid[0]), .rd_ready(rd_ready[0]), .rd_address(rd_address[0]), .rd_lines(rd_lines[0]), .rd_tag(rd_tag[0]),
            .rsp_valid(rsp_valid[0]), .rsp_tag(rsp_tag[0]), .rsp_line(rsp_line[0]), .rsp_error(rsp_error[0]),
            .rsp_data(rsp_data[0]),
            .wr_valid(wr_valid[0]), .wr_ready(wr_ready[0]), .wr_first(wr_first[0]), .wr_fence(wr_fence[0]),
            .wr_address(wr_address[0]), .wr_lines(wr_lines[0]), .wr_tag(wr_tag[0]), .wr_data(wr_data[0]),
            .done_valid(done_valid[0]), .done_tag(done_tag[0]), .done_error(done_error[0]),
            .read_valid, .read_ready, .read_item, .write_valid, .write_ready, .write_last, .write_item,
            .r_valid, .r_id, .r_line, .r_last, .r_error, .r_data, .b_valid, .b_id, .b_error
        );
        assign {fault_valid, fault_write, read_refused, write_refused, line_written, stalled} = '0;
        assign line_read = PORTS'(r_valid);
        assign fault_kind = {PORTS{FAULT_NONE}};
        assign fault_lines = '0;
        assign fault_address = '0;
    end else begin : guarded
        logic [PORTS-1:0] reads_valid, reads_ready, writes_valid, writes_ready, writes_last;
        logic [PORTS-1:0][1:0] reads_lines, writes_lines;
        logic [PORTS-1:0][READ_ITEM-1:0] reads_item;
        logic [PORTS-1:0][WRITE_ITEM-1:0] writes_item;
        logic [PORTS-1:0][3:0] weights;
        logic rr_valid, rr_last, rr_error, bb_valid, bb_error;
        logic [ID-1:0] rr_id, bb_id;
        logic [1:0] rr_line;
        logic [DATA-1:0] rr_data;

        for (genvar i = 0; i < PORTS; i++) begin : of_port
            auditor #(.ADDRESS(ADDRESS), .TAG(TAG), .DATA(DATA), .PORT(PORT), .UNDERWAY(UNDERWAY)) guard (
                .clk, .reset, .port(PORT'(i)), .hold(hold[i]), .enable(enable[i]), .offset(offset[i]), .first(first[i]),
                .last(last[i]), .rate(rate[i]), .fault_clear(fault_clear[i]), .drained(drained[i]),
                .rd_valid(rd_valid[i]), .rd_ready(rd_ready[i]), .rd_address(rd_address[i]), .rd_lines(rd_lines[i]),
                .rd_tag(rd_tag[i]), .rsp_valid(rsp_valid[i]), .rsp_tag(rsp_tag[i]), .rsp_line(rsp_line[i]),
                .rsp_error(rsp_error[i]), .rsp_data(rsp_data[i]),
                .wr_valid(wr_valid[i]), .wr_ready(wr_ready[i]), .wr_first(wr_first[i]), .wr_fence(wr_fence[i]),
                .wr_address(wr_address[i]), .wr_lines(wr_lines[i]), .wr_tag(wr_tag[i]), .wr_data(wr_data[i]),
                .done_valid(done_valid[i]), .done_tag(done_tag[i]), .done_error(done_error[i]),
                .read_valid(reads_valid[i]), .read_ready(reads_ready[i]), .read_lines(reads_lines[i]), .read_item(reads_item[i]),
                .write_valid(writes_valid[i]), .write_ready(writes_ready[i]), .write_lines(writes_lines[i]),
                .write_last(writes_last[i]), .write_item(writes_item[i]),
                .r_valid(rr_valid), .r_port(rr_id[ID-1:TAG]), .r_tag(rr_id[TAG-1:0]), .r_line(rr_line), .r_last(rr_last),
                .r_error(rr_error), .r_data(rr_data),
                .b_valid(bb_valid), .b_port(bb_id[ID-1:TAG]), .b_tag(bb_id[TAG-1:0]), .b_error(bb_error),
                .fault_valid(fault_valid[i]), .fault_kind(fault_kind[i]), .fault_write(fault_write[i]),
                .fault_lines(fault_lines[i]), .fault_address(fault_address[i]), .read_refused(read_refused[i]),
                .write_refused(write_refused[i]), .line_read(line_read[i]), .line_written(line_written[i]),
                .stalled(stalled[i])
            );
            assign weights[i] = hold[i] ? 4'd0 : weight[i];
        end

        mux_tree #(.PORTS(PORTS), .ARITY(ARITY), .WIDTH(READ_ITEM), .WEIGHTED(WEIGHTED)) read_tree (
            .clk, .reset, .in_valid(reads_valid), .in_ready(reads_ready), .in_item(reads_item), .in_last({PORTS{1'b1}}),
            .in_lines(reads_lines), .weight(weights), .out_valid(read_valid), .out_ready(read_ready), .out_item(read_item),
            .out_last(), .out_lines()
        );
        mux_tree #(.PORTS(PORTS), .ARITY(ARITY), .WIDTH(WRITE_ITEM), .WEIGHTED(WEIGHTED)) write_tree (
            .clk, .reset, .in_valid(writes_valid), .in_ready(writes_ready), .in_item(writes_item), .in_last(writes_last),
            .in_lines(writes_lines), .weight(weights), .out_valid(write_valid), .out_ready(write_ready), .out_item(write_item),
            .out_last(write_last), .out_lines()
        );
        response_pipe #(.STAGES(STAGES), .WIDTH(ID + 2 + 2 + DATA)) read_responses (
            .clk, .reset, .in_valid(r_valid), .in_item({r_id, r_line, r_last, r_error, r_data}),
            .out_valid(rr_valid), .out_item({rr_id, rr_line, rr_last, rr_error, rr_data})
        );
        response_pipe #(.STAGES(STAGES), .WIDTH(ID + 1)) write_responses (
            .clk, .reset, .in_valid(b_valid), .in_item({b_id, b_error}), .out_valid(bb_valid), .out_item({bb_id, bb_error})
        );
    end

`ifdef PROVE_MONITOR
    `include "monitor_proof.svh"
`endif
endmodule
