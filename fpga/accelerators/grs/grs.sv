// GRS: grayscale image filter. A line is 16 pixels of red, green, blue and alpha, a byte each; red, green and blue of each become
// (77 red + 150 green + 29 blue) / 256.
module grs #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select, s_loaded;
    logic [511:0] s_in, s_out;
    stream_shell #(.GUID(128'h6772_7300_4a5e_4f0a_9d1b_2f4f_0c11_0003), .STATE(1), .PERIOD(PERIOD), .BURST(4)) shell (
        .*, .s_state(1'b0), .s_idle(1'b1), .s_value(64'd0)
    );
    assign s_out_valid = s_in_valid;
    assign s_in_ready = s_out_ready;

    function automatic logic [31:0] gray(logic [31:0] pixel);
        logic [15:0] sum = 16'd77 * 16'(pixel[7:0]) + 16'd150 * 16'(pixel[15:8]) + 16'd29 * 16'(pixel[23:16]);
        return {pixel[31:24], {3{sum[15:8]}}};
    endfunction
    always_comb for (int i = 0; i < 16; i++) s_out[32*i+:32] = gray(s_in[32*i+:32]);
endmodule
