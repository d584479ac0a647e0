// One node of a multiplexer tree: merges INPUTS streams into one, one item per cycle. A burst is never interleaved: from its
// first item to the one with `in_last` the node stays with its input.
//
// Round robin by request, or with WEIGHTED by lines: each round gives an input `weight` x 4 lines of credit, and an input
// without credit waits until no input that waits has any left. An idle input keeps at most one round's credit.
module mux_node #(
    parameter int INPUTS   = 2,
    parameter int WIDTH    = 8,
    parameter bit WEIGHTED = 1'b0,
    // Bits of a weight: the sum of the weights of all ports below an input.
    parameter int WEIGHT   = 8
) (
    input  logic                          clk,
    input  logic                          reset,
    input  logic [INPUTS-1:0]             in_valid,
    output logic [INPUTS-1:0]             in_ready,
    input  logic [INPUTS-1:0][WIDTH-1:0]  in_item,
    input  logic [INPUTS-1:0]             in_last,
    // Lines that the request has, less one; read with a burst's first item.
    input  logic [INPUTS-1:0][1:0]        in_lines,
    input  logic [INPUTS-1:0][WEIGHT-1:0] weight,
    output logic                          out_valid,
    input  logic                          out_ready,
    output logic [WIDTH-1:0]              out_item,
    output logic                          out_last,
    output logic [1:0]                    out_lines
);
    localparam int INDEX  = INPUTS > 1 ? $clog2(INPUTS) : 1;
    // Signed: a request may take up to three lines more than the credit that is left.
    localparam int CREDIT = WEIGHT + 4;

    logic             bursting;
    logic [INDEX-1:0] owner, next, pick;
    logic [INPUTS-1:0] pool, grant;
    logic             room, fire;

    // The first of `pool` from `next` on, in a circle.
    always_comb begin
        pick = next;
        for (int step = INPUTS - 1; step >= 0; step--) begin
            automatic int candidate = int'(next) + step;
            if (candidate >= INPUTS) candidate -= INPUTS;
            if (pool[candidate]) pick = INDEX'(candidate);
        end
        if (bursting) pick = owner;
    end

    always_comb begin
        grant = '0;
        grant[pick] = in_valid[pick];
    end
    assign in_ready = room ? grant : '0;
    assign fire = room && grant[pick];

    always_ff @(posedge clk) begin
        if (reset) begin
            bursting <= 1'b0;
            next     <= '0;
        end else if (fire) begin
            bursting <= !in_last[pick];
            if (!bursting) next <= (int'(pick) == INPUTS - 1) ? '0 : pick + 1'b1;
        end
        if (fire) owner <= pick;
    end

    if (WEIGHTED) begin : weighted
        logic signed [INPUTS-1:0][CREDIT-1:0] credit;
        logic [INPUTS-1:0] eligible;
        logic replenish;
        always_comb
            for (int i = 0; i < INPUTS; i++)
                eligible[i] = in_valid[i] && !credit[i][CREDIT-1] && credit[i] != '0;
        assign replenish = eligible == '0;
        assign pool = replenish ? in_valid : eligible;
        for (genvar i = 0; i < INPUTS; i++) begin : account
            logic signed [CREDIT-1:0] quantum, filled;
            // An input of weight 0 has no port that is in use; it counts as 1.
            assign quantum = (weight[i] == '0) ? CREDIT'(4) : $signed(CREDIT'({weight[i], 2'b00}));
            always_comb begin
                filled = $signed(credit[i]);
                if (replenish) begin
                    filled = filled + quantum;
                end
                if (filled > quantum) filled = quantum;
            end
            always_ff @(posedge clk)
                if (reset) credit[i] <= quantum;
                else if (fire && !bursting)
                    credit[i] <= (int'(pick) == i) ? filled - $signed(CREDIT'({1'b0, in_lines[i]})) - CREDIT'(1) : filled;
        end
    end else begin : round_robin
        assign pool = in_valid;
    end

    stage #(.WIDTH(WIDTH + 3)) out_stage (
        .clk, .reset,
        .in_valid (fire),
        .in_ready (room),
        .in_item  ({in_last[pick], in_lines[pick], in_item[pick]}),
        .out_valid, .out_ready,
        .out_item ({out_last, out_lines, out_item})
    );

`ifdef PROVE_MUX_NODE
    `include "mux_node_proof.svh"
`endif
endmodule
