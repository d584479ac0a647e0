// A tree of multiplexer nodes: PORTS streams into one, at most ARITY at each node, a register stage per level.
module mux_tree #(
    parameter int PORTS    = 8,
    parameter int ARITY    = 2,
    parameter int WIDTH    = 8,
    parameter bit WEIGHTED = 1'b0
) (
    input  logic                        clk,
    input  logic                        reset,
    input  logic [PORTS-1:0]            in_valid,
    output logic [PORTS-1:0]            in_ready,
    input  logic [PORTS-1:0][WIDTH-1:0] in_item,
    input  logic [PORTS-1:0]            in_last,
    input  logic [PORTS-1:0][1:0]       in_lines,
    // Weights of the ports, 0 for one that is not in use.
    input  logic [PORTS-1:0][3:0]       weight,
    output logic                        out_valid,
    input  logic                        out_ready,
    output logic [WIDTH-1:0]            out_item,
    output logic                        out_last,
    output logic [1:0]                  out_lines
);
    localparam int LEVELS = line_pkg::levels(PORTS, ARITY);

    // Streams that enter level l; the first PORTS / ARITY^l of them are used.
    logic [LEVELS:0][PORTS-1:0]            valid, ready, last;
    logic [LEVELS:0][PORTS-1:0][WIDTH-1:0] item;
    logic [LEVELS:0][PORTS-1:0][1:0]       lines;
    wire  [LEVELS:0][PORTS-1:0][7:0]       sum;

    assign valid[0] = in_valid;
    assign item[0]  = in_item;
    assign last[0]  = in_last;
    assign lines[0] = in_lines;
    assign in_ready = ready[0];
    for (genvar i = 0; i < PORTS; i++) begin : of_port
        assign sum[0][i] = {4'b0, weight[i]};
    end

    function automatic int width_at(int level);
        int count = PORTS;
        for (int i = 0; i < level; i++) count = (count + ARITY - 1) / ARITY;
        return count;
    endfunction

    for (genvar level = 0; level < LEVELS; level++) begin : at
        localparam int HERE = width_at(level);
        localparam int ABOVE = width_at(level + 1);
        for (genvar node = 0; node < ABOVE; node++) begin : node_of
            localparam int FIRST = node * ARITY;
            localparam int INPUTS = (HERE - FIRST < ARITY) ? HERE - FIRST : ARITY;
            mux_node #(.INPUTS(INPUTS), .WIDTH(WIDTH), .WEIGHTED(WEIGHTED), .WEIGHT(8)) mux (
                .clk, .reset,
                .in_valid  (valid[level][FIRST+:INPUTS]),
                .in_ready  (ready[level][FIRST+:INPUTS]),
                .in_item   (item[level][FIRST+:INPUTS]),
                .in_last   (last[level][FIRST+:INPUTS]),
                .in_lines  (lines[level][FIRST+:INPUTS]),
                .weight    (sum[level][FIRST+:INPUTS]),
                .out_valid (valid[level+1][node]),
                .out_ready (ready[level+1][node]),
                .out_item  (item[level+1][node]),
                .out_last  (last[level+1][node]),
                .out_lines (lines[level+1][node])
            );
            // Weights change rarely; a register keeps the sums out of the path of a request.
            logic [7:0] below;
            always_ff @(posedge clk) begin : add
                automatic logic [7:0] total = '0;
                for (int i = 0; i < INPUTS; i++) total += sum[level][FIRST+i];
                below <= total;
            end
            assign sum[level+1][node] = below;
        end
        for (genvar node = ABOVE; node < PORTS; node++) begin : unused
            assign valid[level+1][node] = 1'b0;
            assign item[level+1][node]  = '0;
            assign last[level+1][node]  = 1'b0;
            assign lines[level+1][node] = '0;
            assign sum[level+1][node]   = '0;
        end
        for (genvar node = HERE; node < PORTS; node++) begin : unread
            assign ready[level][node] = 1'b0;
        end
    end
    for (genvar node = 1; node < PORTS; node++) begin : unread_top
        assign ready[LEVELS][node] = 1'b0;
    end

    assign out_valid = valid[LEVELS][0];
    assign out_item  = item[LEVELS][0];
    assign out_last  = last[LEVELS][0];
    assign out_lines = lines[LEVELS][0];
    assign ready[LEVELS][0] = out_ready;

`ifdef PROVE_MUX_TREE
    `include "mux_tree_proof.svh"
`endif
endmodule
