// MD5: hashes a message whose length is a multiple of 64 bytes; software pads. One of the 64 operations per step. After the last
// line one line with the digest in its first 16 bytes is written.
module md5 #(
    parameter int PERIOD = 4
) (
`include "accelerator_ports.svh"
);
    localparam int STATE = 3 + 6 + 128 + 128 + 512;
    localparam logic [127:0] INITIAL = 128'h10325476_98badcfe_efcdab89_67452301;
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in, block;
    logic [STATE-1:0] s_loaded;
    // A block is being hashed; the digest is to be written; the operation; A in the lowest word of both.
    logic busy, digest_due, last;
    logic [5:0] operation;
    logic [127:0] chained, working, ended;
    stream_shell #(.GUID(128'h6d64_3500_4a5e_4f0a_9d1b_2f4f_0c11_0005), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state({last, busy, digest_due, operation, chained, working, block}),
        .s_out(512'(chained)), .s_idle(!busy && !digest_due), .s_value(64'd0)
    );

    localparam logic [31:0] SINES [64] = '{
        32'hd76aa478, 32'he8c7b756, 32'h242070db, 32'hc1bdceee, 32'hf57c0faf, 32'h4787c62a, 32'ha8304613, 32'hfd469501,
        32'h698098d8, 32'h8b44f7af, 32'hffff5bb1, 32'h895cd7be, 32'h6b901122, 32'hfd987193, 32'ha679438e, 32'h49b40821,
        32'hf61e2562, 32'hc040b340, 32'h265e5a51, 32'he9b6c7aa, 32'hd62f105d, 32'h02441453, 32'hd8a1e681, 32'he7d3fbc8,
        32'h21e1cde6, 32'hc33707d6, 32'hf4d50d87, 32'h455a14ed, 32'ha9e3e905, 32'hfcefa3f8, 32'h676f02d9, 32'h8d2a4c8a,
        32'hfffa3942, 32'h8771f681, 32'h6d9d6122, 32'hfde5380c, 32'ha4beea44, 32'h4bdecfa9, 32'hf6bb4b60, 32'hbebfbc70,
        32'h289b7ec6, 32'heaa127fa, 32'hd4ef3085, 32'h04881d05, 32'hd9d4d039, 32'he6db99e5, 32'h1fa27cf8, 32'hc4ac5665,
        32'hf4292244, 32'h432aff97, 32'hab9423a7, 32'hfc93a039, 32'h655b59c3, 32'h8f0ccc92, 32'hffeff47d, 32'h85845dd1,
        32'h6fa87e4f, 32'hfe2ce6e0, 32'ha3014314, 32'h4e0811a1, 32'hf7537e82, 32'hbd3af235, 32'h2ad7d2bb, 32'heb86d391
    };
    localparam logic [4:0] TURNS [16] = '{
        5'd7, 5'd12, 5'd17, 5'd22, 5'd5, 5'd9, 5'd14, 5'd20, 5'd4, 5'd11, 5'd16, 5'd23, 5'd6, 5'd10, 5'd15, 5'd21
    };
    logic [31:0] a, b, c, d, mixed, sum;
    logic [3:0] word;
    logic [4:0] turn;
    assign {d, c, b, a} = working;
    always_comb
        case (operation[5:4])
            2'd0: begin mixed = (b & c) | (~b & d); word = operation[3:0]; end
            2'd1: begin mixed = (d & b) | (~d & c); word = 4'(5 * operation[3:0] + 4'd1); end
            2'd2: begin mixed = b ^ c ^ d; word = 4'(3 * operation[3:0] + 4'd5); end
            default: begin mixed = c ^ (b | ~d); word = 4'(7 * operation[3:0]); end
        endcase
    assign turn = TURNS[{operation[5:4], operation[1:0]}];
    assign sum = a + mixed + SINES[operation] + block[32*word+:32];

    // A, B, C and D move on by one; the new B comes from the sum.
    assign ended = {c, b, b + ((sum << turn) | (sum >> (6'd32 - 6'(turn)))), d};

    assign s_in_ready = !busy && !digest_due;
    assign s_out_valid = digest_due;
    always_ff @(posedge clk)
        if (s_start) begin
            {last, busy, digest_due, operation, working, block} <= '0;
            chained <= INITIAL;
        end else if (s_load) {last, busy, digest_due, operation, chained, working, block} <= s_loaded;
        else if (s_enable) begin
            if (s_in_valid && s_in_ready) begin
                {last, busy, operation} <= {s_last, 1'b1, 6'd0};
                {working, block} <= {chained, s_in};
            end
            if (busy) begin
                operation <= operation + 1'b1;
                working <= ended;
                if (operation == 6'd63) begin
                    {busy, digest_due} <= {1'b0, last};
                    for (int i = 0; i < 4; i++) chained[32*i+:32] <= chained[32*i+:32] + ended[32*i+:32];
                end
            end
            if (digest_due && s_out_ready) digest_due <= 1'b0;
        end
endmodule
