// A register stage between a sender and a receiver with valid/ready: one item per cycle, and `in_ready` comes from a register,
// so stages in a row have no long path of readies. Holds two items.
module stage #(
    parameter int WIDTH = 1
) (
    input  logic             clk,
    input  logic             reset,
    input  logic             in_valid,
    output logic             in_ready,
    input  logic [WIDTH-1:0] in_item,
    output logic             out_valid,
    input  logic             out_ready,
    output logic [WIDTH-1:0] out_item
);
    logic spare_valid;
    logic [WIDTH-1:0] spare;

    assign in_ready = !spare_valid;

    always_ff @(posedge clk) begin
        if (reset) begin
            out_valid   <= 1'b0;
            spare_valid <= 1'b0;
        end else if (out_ready || !out_valid) begin
            out_valid   <= spare_valid || in_valid;
            spare_valid <= 1'b0;
        end else if (in_valid && in_ready) begin
            spare_valid <= 1'b1;
        end
        if (out_ready || !out_valid) begin
            if (spare_valid) out_item <= spare;
            else if (in_valid) out_item <= in_item;
        end else if (in_valid && in_ready) begin
            spare <= in_item;
        end
    end
endmodule
