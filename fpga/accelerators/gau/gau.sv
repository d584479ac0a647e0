// GAU: Gaussian image filter of 3 by 3 pixels with the weights 1 2 1, 2 4 2, 1 2 1. image_window says how an image lies in memory.
module gau #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    logic [65:0][7:0] above, middle, below;
    logic [63:0][7:0] filtered;
    image_window #(.GUID(128'h6761_7500_4a5e_4f0a_9d1b_2f4f_0c11_0009), .PERIOD(PERIOD)) window (.*);

    function automatic logic [11:0] weighted(logic [7:0] left, logic [7:0] center, logic [7:0] right);
        return 12'(left) + {3'd0, center, 1'b0} + 12'(right);
    endfunction
    always_comb
        for (int i = 0; i < 64; i++) begin
            automatic logic [11:0] sum = weighted(above[i], above[i+1], above[i+2]) + weighted(below[i], below[i+1], below[i+2])
                + {weighted(middle[i], middle[i+1], middle[i+2])[10:0], 1'b0};
            filtered[i] = sum[11:4];
        end
endmodule
