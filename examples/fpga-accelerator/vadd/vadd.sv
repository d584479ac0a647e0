// VADD: adds two vectors of 32-bit numbers. Lines of the first and of the second vector alternate in the input, 16 numbers each;
// the output has a line for each two of them.
module vadd #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    localparam int STATE = 1 + 512;
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in, s_out, first;
    logic [STATE-1:0] s_loaded;
    // A line of the first vector is there.
    logic half;
    stream_shell #(.GUID(128'h7661_6464_4a5e_4f0a_9d1b_2f4f_0c11_0101), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state({half, first}), .s_idle(1'b1), .s_value(64'd0)
    );

    // The first line of a pair is kept; with the second one the sum passes at once.
    assign s_in_ready = !half || s_out_ready;
    assign s_out_valid = half && s_in_valid;
    always_comb for (int i = 0; i < 16; i++) s_out[32*i+:32] = first[32*i+:32] + s_in[32*i+:32];

    always_ff @(posedge clk)
        if (s_start) {half, first} <= '0;
        else if (s_load) {half, first} <= s_loaded;
        else if (s_enable && s_in_valid && s_in_ready) begin
            half <= !half;
            first <= s_in;
        end
endmodule
