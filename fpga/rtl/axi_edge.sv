// The AXI4 manager: line requests of the tree to bursts on the shell's ports, and its responses back. All outputs come from
// registers. Responses are always taken.
module axi_edge #(
    parameter int ADDRESS = line_pkg::ADDRESS,
    parameter int DATA    = line_pkg::DATA,
    parameter int ID      = line_pkg::ID
) (
    input  logic               clk,
    input  logic               reset,

    input  logic               read_valid,
    output logic               read_ready,
    input  logic [ID-1:0]      read_id,
    input  logic [1:0]         read_lines,
    input  logic [ADDRESS-1:0] read_address,
    input  logic               write_valid,
    output logic               write_ready,
    input  logic [ID-1:0]      write_id,
    input  logic [1:0]         write_lines,
    input  logic [ADDRESS-1:0] write_address,
    input  logic               write_first,
    input  logic               write_last,
    input  logic [DATA-1:0]    write_data,

    output logic               arvalid,
    input  logic               arready,
    output logic [ID-1:0]      arid,
    output logic [63:0]        araddr,
    output logic [7:0]         arlen,
    output logic               awvalid,
    input  logic               awready,
    output logic [ID-1:0]      awid,
    output logic [63:0]        awaddr,
    output logic [7:0]         awlen,
    output logic               wvalid,
    input  logic               wready,
    output logic [DATA-1:0]    wdata,
    output logic               wlast,
    input  logic               rvalid,
    input  logic [ID-1:0]      rid,
    input  logic [1:0]         rresp,
    input  logic               rlast,
    input  logic [DATA-1:0]    rdata,
    input  logic               bvalid,
    input  logic [ID-1:0]      bid,
    input  logic [1:0]         bresp,

    // Responses to the ports, in the cycle after they came.
    output logic               r_valid,
    output logic [ID-1:0]      r_id,
    output logic [1:0]         r_line,
    output logic               r_last,
    output logic               r_error,
    output logic [DATA-1:0]    r_data,
    output logic               b_valid,
    output logic [ID-1:0]      b_id,
    output logic               b_error
);
    // Number of the next line of each id's burst: a shell may interleave the lines of different ids.
    (* ramstyle = "MLAB" *) logic [1:0] next_line[2**ID];
    initial for (int i = 0; i < 2 ** ID; i++) next_line[i] = 2'd0;

    logic address_free, data_free;
    assign read_ready = !arvalid || arready;
    assign address_free = !awvalid || awready;
    assign data_free = !wvalid || wready;
    assign write_ready = data_free && (!write_first || address_free);

    always_ff @(posedge clk) begin
        if (reset) arvalid <= 1'b0;
        else if (read_ready) arvalid <= read_valid;
        if (read_ready && read_valid) begin
            arid   <= read_id;
            araddr <= 64'({read_address, 6'b0});
            arlen  <= 8'(read_lines);
        end

        if (reset) awvalid <= 1'b0;
        else if (write_valid && write_ready && write_first) awvalid <= 1'b1;
        else if (awready) awvalid <= 1'b0;
        if (write_valid && write_ready && write_first) begin
            awid   <= write_id;
            awaddr <= 64'({write_address, 6'b0});
            awlen  <= 8'(write_lines);
        end
        if (reset) wvalid <= 1'b0;
        else if (data_free) wvalid <= write_valid && write_ready;
        if (write_valid && write_ready) begin
            wdata <= write_data;
            wlast <= write_last;
        end

        r_valid <= rvalid && !reset;
        r_id    <= rid;
        r_last  <= rlast;
        r_error <= rresp[1];
        r_line  <= next_line[rid];
        if (rvalid) begin
            r_data <= rdata;
            next_line[rid] <= rlast ? 2'd0 : next_line[rid] + 2'd1;
        end
        b_valid <= bvalid && !reset;
        b_id    <= bid;
        b_error <= bresp[1];
    end

`ifdef PROVE_AXI_EDGE
    `include "axi_edge_proof.svh"
`endif
endmodule
