// A token bucket: `rate` lines per 1,024 cycles, at most one burst of four lines saved up. A rate of 0 is no limit.
// Credit is counted in 1/1,024 of a line.
module bucket (
    input  logic        clk,
    input  logic        reset,
    input  logic [10:0] rate,
    // Lines less one of the request that asks, and if it leaves in this cycle.
    input  logic [1:0]  lines,
    input  logic        take,
    output logic        allowed
);
    localparam int FULL = 4 * 1024;
    logic [13:0] credit, cost, filled, kept;

    assign cost = {1'b0, {1'b0, lines} + 3'd1, 10'b0};
    assign allowed = rate == '0 || credit >= cost;
    assign filled = credit + {3'b0, rate};
    assign kept = (take && rate != '0) ? filled - cost : filled;

    always_ff @(posedge clk)
        if (reset) credit <= '0;
        else credit <= (kept > 14'(FULL)) ? 14'(FULL) : kept;

`ifdef PROVE_BUCKET
    `include "bucket_proof.svh"
`endif
endmodule
