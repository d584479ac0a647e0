// GRN: Gaussian random numbers. COUNT lines of 16 numbers are written, signed, with mean 0 and a standard deviation of 65,536 (1.0
// with 16 binary digits behind the point): sums of twelve uniform numbers of 16 bits, less their mean. Each number of a line has
// three xorshift generators of its own, which SEED begins.
module grn #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    localparam int GENERATORS = 48;
    localparam int STATE = 32 + 64 * GENERATORS;
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in, s_out;
    logic [63:0] s_value, count, seed;
    logic [STATE-1:0] s_loaded;
    logic [31:0] left;
    logic [GENERATORS-1:0][63:0] generators;
    stream_shell #(.GUID(128'h6772_6e00_4a5e_4f0a_9d1b_2f4f_0c11_000c), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state({left, generators}), .s_idle(1'b1)
    );
    plain_register #(.AT(12'h100)) count_register (.*, .value(count));
    plain_register #(.AT(12'h108)) seed_register (.*, .value(seed));
    assign s_value = address == 12'h100 ? count : address == 12'h108 ? seed : '0;

    // Number i of the splitmix64 sequence that begins with 0: the generators begin at different places.
    function automatic logic [63:0] scattered(int i);
        logic [63:0] z = 64'h9e37_79b9_7f4a_7c15 * 64'(i + 1);
        z = (z ^ (z >> 30)) * 64'hbf58_476d_1ce4_e5b9;
        z = (z ^ (z >> 27)) * 64'h94d0_49bb_1331_11eb;
        return z ^ (z >> 31);
    endfunction
    function automatic logic [63:0] following(logic [63:0] x);
        logic [63:0] y = x ^ (x << 13);
        y = y ^ (y >> 7);
        return y ^ (y << 17);
    endfunction
    // Without SOURCE and LINES no line is read ahead.
    assign s_in_ready = 1'b1;
    assign s_out_valid = left != '0;
    always_comb
        for (int i = 0; i < 16; i++) begin
            automatic logic [31:0] sum = '0;
            for (int k = 0; k < 12; k++) sum += 32'(generators[3*i+k/4][16*(k%4)+:16]);
            s_out[32*i+:32] = sum - 32'd393210;
        end
    always_ff @(posedge clk)
        if (s_start) begin
            left <= count[31:0];
            // A generator must not begin with 0.
            for (int i = 0; i < GENERATORS; i++) generators[i] <= (seed ^ scattered(i)) | 64'd1;
        end else if (s_load) {left, generators} <= s_loaded;
        else if (s_enable && left != '0 && s_out_ready) begin
            left <= left - 1'b1;
            for (int i = 0; i < GENERATORS; i++) generators[i] <= following(generators[i]);
        end
endmodule
