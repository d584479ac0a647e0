// SBL: Sobel image filter: the sum of the absolute horizontal and vertical gradients of 3 by 3 pixels, at most 255. image_window
// says how an image lies in memory.
module sbl #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    logic [65:0][7:0] above, middle, below;
    logic [63:0][7:0] filtered;
    image_window #(.GUID(128'h7362_6c00_4a5e_4f0a_9d1b_2f4f_0c11_000a), .PERIOD(PERIOD)) window (.*);

    function automatic logic [9:0] weighted(logic [7:0] first, logic [7:0] second, logic [7:0] third);
        return 10'(first) + {1'b0, second, 1'b0} + 10'(third);
    endfunction
    function automatic logic [9:0] distance(logic [9:0] a, logic [9:0] b);
        return a > b ? a - b : b - a;
    endfunction
    always_comb
        for (int i = 0; i < 64; i++) begin
            automatic logic [10:0] sum = 11'(distance(weighted(above[i], middle[i], below[i]), weighted(above[i+2], middle[i+2], below[i+2])))
                + 11'(distance(weighted(above[i], above[i+1], above[i+2]), weighted(below[i], below[i+1], below[i+2])));
            filtered[i] = sum > 11'd255 ? 8'd255 : sum[7:0];
        end
endmodule
