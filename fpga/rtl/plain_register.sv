// A 64-bit register of an accelerator's page that MMIO writes in halves or as a whole.
module plain_register #(
    parameter logic [11:0] AT = 12'h040
) (
    input  logic        clk,
    input  logic        reset,
    input  logic        select,
    input  logic        write,
    input  logic [11:0] address,
    input  logic [1:0]  lanes,
    input  logic [63:0] data,
    output logic [63:0] value
);
    always_ff @(posedge clk)
        if (reset) value <= '0;
        else if (select && write && address == AT) begin
            if (lanes[0]) value[31:0] <= data[31:0];
            if (lanes[1]) value[63:32] <= data[63:32];
        end
endmodule
