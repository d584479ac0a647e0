// GRN: Gaussian random numbers. COUNT lines of 16 numbers are written, signed, with mean 0 and a standard deviation of 65,536 (1.0
// with 16 binary digits behind the point): sums of twelve uniform numbers of 16 bits, less their mean. These are the parts of three
// words of a xorshift generator that SEED begins, a word per step.
module grn #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    localparam int STATE = 32 + 64 + 20 + 2 + 4 + 1 + 512;
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in;
    logic [63:0] s_value, count, seed;
    logic [STATE-1:0] s_loaded;
    // Lines that are not written yet; the generator; the sum of a number's words so far, and how many they are; the numbers of a
    // line so far, and that it has all.
    logic [31:0] left;
    logic [63:0] generator;
    logic [19:0] sum, whole;
    logic [1:0] words;
    logic [3:0] index;
    logic full;
    logic [511:0] numbers;
    stream_shell #(.GUID(128'h6772_6e00_4a5e_4f0a_9d1b_2f4f_0c11_000c), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state({left, generator, sum, words, index, full, numbers}), .s_out(numbers), .s_idle(left == '0)
    );
    plain_register #(.AT(12'h100)) count_register (.*, .value(count));
    plain_register #(.AT(12'h108)) seed_register (.*, .value(seed));
    assign s_value = address == 12'h100 ? count : address == 12'h108 ? seed : '0;

    function automatic logic [63:0] following(logic [63:0] x);
        logic [63:0] y = x ^ (x << 13);
        y = y ^ (y >> 7);
        return y ^ (y << 17);
    endfunction
    // Twelve parts are less than 2^20.
    assign whole = sum + 20'(generator[15:0]) + 20'(generator[31:16]) + 20'(generator[47:32]) + 20'(generator[63:48]);

    // Without SOURCE and LINES no line is read ahead.
    assign s_in_ready = 1'b1;
    assign s_out_valid = full;
    always_ff @(posedge clk)
        if (s_start) begin
            left <= count[31:0];
            {sum, words, index, full, numbers} <= '0;
            // A generator must not begin with 0.
            generator <= (seed ^ 64'h9e37_79b9_7f4a_7c15) | 64'd1;
        end else if (s_load) {left, generator, sum, words, index, full, numbers} <= s_loaded;
        else if (s_enable && left != '0) begin
            if (full) begin
                if (s_out_ready) begin
                    full <= 1'b0;
                    left <= left - 1'b1;
                end
            end else begin
                generator <= following(generator);
                if (words == 2'd2) begin
                    numbers[32*index+:32] <= 32'(whole) - 32'd393210;
                    words <= '0;
                    sum <= '0;
                    index <= index + 1'b1;
                    full <= index == 4'd15;
                end else begin
                    words <= words + 1'b1;
                    sum <= whole;
                end
            end
        end
endmodule
