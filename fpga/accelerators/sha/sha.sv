// SHA: SHA-512 of a message whose length is a multiple of 128 bytes; software pads. One of the 80 rounds per step. After the last
// block one line with the digest is written.
module sha #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    localparam int STATE = 4 + 7 + 512 + 512 + 1024;
    // A in the lowest word.
    localparam logic [511:0] INITIAL = {
        256'h5be0cd19137e2179_1f83d9abfb41bd6b_9b05688c2b3e6c1f_510e527fade682d1,
        256'ha54ff53a5f1d36f1_3c6ef372fe94f82b_bb67ae8584caa73b_6a09e667f3bcc908
    };
    localparam logic [63:0] CONSTANTS [80] = '{
        64'h428a2f98d728ae22, 64'h7137449123ef65cd, 64'hb5c0fbcfec4d3b2f, 64'he9b5dba58189dbbc,
        64'h3956c25bf348b538, 64'h59f111f1b605d019, 64'h923f82a4af194f9b, 64'hab1c5ed5da6d8118,
        64'hd807aa98a3030242, 64'h12835b0145706fbe, 64'h243185be4ee4b28c, 64'h550c7dc3d5ffb4e2,
        64'h72be5d74f27b896f, 64'h80deb1fe3b1696b1, 64'h9bdc06a725c71235, 64'hc19bf174cf692694,
        64'he49b69c19ef14ad2, 64'hefbe4786384f25e3, 64'h0fc19dc68b8cd5b5, 64'h240ca1cc77ac9c65,
        64'h2de92c6f592b0275, 64'h4a7484aa6ea6e483, 64'h5cb0a9dcbd41fbd4, 64'h76f988da831153b5,
        64'h983e5152ee66dfab, 64'ha831c66d2db43210, 64'hb00327c898fb213f, 64'hbf597fc7beef0ee4,
        64'hc6e00bf33da88fc2, 64'hd5a79147930aa725, 64'h06ca6351e003826f, 64'h142929670a0e6e70,
        64'h27b70a8546d22ffc, 64'h2e1b21385c26c926, 64'h4d2c6dfc5ac42aed, 64'h53380d139d95b3df,
        64'h650a73548baf63de, 64'h766a0abb3c77b2a8, 64'h81c2c92e47edaee6, 64'h92722c851482353b,
        64'ha2bfe8a14cf10364, 64'ha81a664bbc423001, 64'hc24b8b70d0f89791, 64'hc76c51a30654be30,
        64'hd192e819d6ef5218, 64'hd69906245565a910, 64'hf40e35855771202a, 64'h106aa07032bbd1b8,
        64'h19a4c116b8d2d0c8, 64'h1e376c085141ab53, 64'h2748774cdf8eeb99, 64'h34b0bcb5e19b48a8,
        64'h391c0cb3c5c95a63, 64'h4ed8aa4ae3418acb, 64'h5b9cca4f7763e373, 64'h682e6ff3d6b2b8a3,
        64'h748f82ee5defb2fc, 64'h78a5636f43172f60, 64'h84c87814a1f0ab72, 64'h8cc702081a6439ec,
        64'h90befffa23631e28, 64'ha4506cebde82bde9, 64'hbef9a3f7b2c67915, 64'hc67178f2e372532b,
        64'hca273eceea26619c, 64'hd186b8c721c0c207, 64'heada7dd6cde0eb1e, 64'hf57d4f7fee6ed178,
        64'h06f067aa72176fba, 64'h0a637dc5a2c898a6, 64'h113f9804bef90dae, 64'h1b710b35131c471b,
        64'h28db77f523047d84, 64'h32caab7b40c72493, 64'h3c9ebe0a15c9bebc, 64'h431d67c49c100d4c,
        64'h4cc5d4becb3e42b6, 64'h597f299cfc657e2a, 64'h5fcb6fab3ad6faec, 64'h6c44198c4a475817
    };
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in;
    logic [STATE-1:0] s_loaded;
    // Half a block is there; a block is being hashed; it is the last one; the digest is to be written.
    logic half, busy, last, digest_due;
    logic [6:0] round;
    logic [7:0][63:0] chained, working;
    // The next 16 words of the message schedule, the next one lowest.
    logic [15:0][63:0] schedule;
    stream_shell #(.GUID(128'h7368_6100_4a5e_4f0a_9d1b_2f4f_0c11_0006), .STATE(STATE), .PERIOD(PERIOD), .BURST(4)) shell (
        .*, .s_state({half, busy, last, digest_due, round, chained, working, schedule}),
        .s_out(big_endian(chained)), .s_idle(!busy && !digest_due), .s_value(64'd0)
    );

    // Words of a line whose bytes are in the order of memory, and the other way round.
    function automatic logic [511:0] big_endian(logic [511:0] line);
        for (int word = 0; word < 8; word++)
            for (int i = 0; i < 8; i++) big_endian[64*word+8*i+:8] = line[64*word+56-8*i+:8];
    endfunction
    function automatic logic [63:0] turned(logic [63:0] x, int n);
        return (x >> n) | (x << (64 - n));
    endfunction
    logic [63:0] a, b, c, d, e, f, g, h, first, second, next;
    assign {h, g, f, e, d, c, b, a} = working;
    assign first = h + (turned(e, 14) ^ turned(e, 18) ^ turned(e, 41)) + ((e & f) ^ (~e & g)) + CONSTANTS[round] + schedule[0];
    assign second = (turned(a, 28) ^ turned(a, 34) ^ turned(a, 39)) + ((a & b) ^ (a & c) ^ (b & c));
    assign next = (turned(schedule[14], 19) ^ turned(schedule[14], 61) ^ (schedule[14] >> 6)) + schedule[9]
        + (turned(schedule[1], 1) ^ turned(schedule[1], 8) ^ (schedule[1] >> 7)) + schedule[0];

    assign s_in_ready = !busy && !digest_due;
    assign s_out_valid = digest_due;
    always_ff @(posedge clk)
        if (s_start) begin
            {half, busy, last, digest_due, round, working, schedule} <= '0;
            chained <= INITIAL;
        end else if (s_load) {half, busy, last, digest_due, round, chained, working, schedule} <= s_loaded;
        else if (s_enable) begin
            if (s_in_valid && s_in_ready) begin
                schedule <= {big_endian(s_in), schedule[15:8]};
                half <= !half;
                last <= s_last;
                if (half) {busy, round, working} <= {1'b1, 7'd0, chained};
            end
            if (busy) begin
                round <= round + 1'b1;
                schedule <= {next, schedule[15:1]};
                working <= {g, f, e, d + first, c, b, a, first + second};
                if (round == 7'd79) begin
                    {busy, digest_due} <= {1'b0, last};
                    chained <= {chained[7] + g, chained[6] + f, chained[5] + e, chained[4] + d + first,
                                chained[3] + c, chained[2] + b, chained[1] + a, chained[0] + first + second};
                end
            end
            if (digest_due && s_out_ready) digest_due <= 1'b0;
        end
endmodule
