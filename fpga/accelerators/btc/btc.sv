// BTC: bitcoin miner. Two lines hold a block's header of 80 bytes; nonces from the one in the header on are tried, at most LIMIT of
// them, until the double SHA-256 of the header ends with BITS zero bits (its last bytes, as a number, begin with them). One round
// per step; the first 64 bytes are hashed once. One line is written: the hash, then the nonce at byte 32 and at byte 36 whether it
// was found.
module btc #(
    parameter int PERIOD = 4
) (
`include "accelerator_ports.svh"
);
    localparam logic [255:0] INITIAL = 256'h5be0cd19_1f83d9ab_9b05688c_510e527f_a54ff53a_3c6ef372_bb67ae85_6a09e667;
    localparam logic [31:0] CONSTANTS [64] = '{
        32'h428a2f98, 32'h71374491, 32'hb5c0fbcf, 32'he9b5dba5, 32'h3956c25b, 32'h59f111f1, 32'h923f82a4, 32'hab1c5ed5,
        32'hd807aa98, 32'h12835b01, 32'h243185be, 32'h550c7dc3, 32'h72be5d74, 32'h80deb1fe, 32'h9bdc06a7, 32'hc19bf174,
        32'he49b69c1, 32'hefbe4786, 32'h0fc19dc6, 32'h240ca1cc, 32'h2de92c6f, 32'h4a7484aa, 32'h5cb0a9dc, 32'h76f988da,
        32'h983e5152, 32'ha831c66d, 32'hb00327c8, 32'hbf597fc7, 32'hc6e00bf3, 32'hd5a79147, 32'h06ca6351, 32'h14292967,
        32'h27b70a85, 32'h2e1b2138, 32'h4d2c6dfc, 32'h53380d13, 32'h650a7354, 32'h766a0abb, 32'h81c2c92e, 32'h92722c85,
        32'ha2bfe8a1, 32'ha81a664b, 32'hc24b8b70, 32'hc76c51a3, 32'hd192e819, 32'hd6990624, 32'hf40e3585, 32'h106aa070,
        32'h19a4c116, 32'h1e376c08, 32'h2748774c, 32'h34b0bcb5, 32'h391c0cb3, 32'h4ed8aa4a, 32'h5b9cca4f, 32'h682e6ff3,
        32'h748f82ee, 32'h78a5636f, 32'h84c87814, 32'h8cc70208, 32'h90befffa, 32'ha4506ceb, 32'hbef9a3f7, 32'hc67178f2
    };
    typedef enum logic [2:0] {HEADER, TAIL, MIDSTATE, INNER, OUTER, RESULT, ENDED} step_t;
    localparam int STATE = 3 + 1 + 6 + 32 + 32 + 96 + 256 + 256 + 256 + 512;
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in;
    logic [63:0] s_value, bits, limit;
    logic [STATE-1:0] s_loaded;
    step_t step;
    logic found;
    logic [5:0] round;
    // The nonce that is tried, and how many were tried before it.
    logic [31:0] nonce, tried;
    // The header's bytes 64 to 75; the hash of its first 64 bytes; the hash that began with `chained` and is at `working`.
    logic [2:0][31:0] tail;
    logic [7:0][31:0] midstate, chained, working, hashed;
    logic [15:0][31:0] schedule;
    stream_shell #(.GUID(128'h6274_6300_4a5e_4f0a_9d1b_2f4f_0c11_0007), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state({step, found, round, nonce, tried, tail, midstate, chained, working, schedule}),
        .s_out({216'd0, 7'd0, found, nonce, big_endian({256'd0, chained})[255:0]}),
        .s_idle(step == HEADER || step == TAIL || step == ENDED)
    );
    plain_register #(.AT(12'h100)) bits_register (.*, .value(bits));
    plain_register #(.AT(12'h108)) limit_register (.*, .value(limit));
    assign s_value = address == 12'h100 ? bits : address == 12'h108 ? limit : address == 12'h180 ? 64'(tried) : '0;

    function automatic logic [511:0] big_endian(logic [511:0] line);
        for (int word = 0; word < 16; word++)
            for (int i = 0; i < 4; i++) big_endian[32*word+8*i+:8] = line[32*word+24-8*i+:8];
    endfunction
    function automatic logic [31:0] swapped(logic [31:0] word);
        return {word[7:0], word[15:8], word[23:16], word[31:24]};
    endfunction
    function automatic logic [31:0] turned(logic [31:0] x, int n);
        return (x >> n) | (x << (32 - n));
    endfunction
    logic [31:0] a, b, c, d, e, f, g, h, first, second, next;
    assign {h, g, f, e, d, c, b, a} = working;
    assign first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + CONSTANTS[round] + schedule[0];
    assign second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    assign next = (turned(schedule[14], 17) ^ turned(schedule[14], 19) ^ (schedule[14] >> 10)) + schedule[9]
        + (turned(schedule[1], 7) ^ turned(schedule[1], 18) ^ (schedule[1] >> 3)) + schedule[0];
    assign hashed = {chained[7] + g, chained[6] + f, chained[5] + e, chained[4] + d + first,
                     chained[3] + c, chained[2] + b, chained[1] + a, chained[0] + first + second};

    // The hash as a number: its last byte is the highest one.
    logic [255:0] number;
    logic meets;
    assign number = big_endian({256'd0, hashed})[255:0];
    assign meets = bits[8:0] == '0 || (number >> (9'd256 - bits[8:0])) == '0;

    // The second block of a header with its padding; the block of the second hash.
    function automatic logic [15:0][31:0] second_block(logic [2:0][31:0] words, logic [31:0] tail_nonce);
        return {32'd640, {10{32'd0}}, 32'h8000_0000, swapped(tail_nonce), words};
    endfunction

    assign s_in_ready = step == HEADER || step == TAIL || step == ENDED;
    assign s_out_valid = step == RESULT;
    always_ff @(posedge clk)
        if (s_start) {step, found, round, nonce, tried, tail, midstate, chained, working, schedule} <= '0;
        else if (s_load) {step, found, round, nonce, tried, tail, midstate, chained, working, schedule} <= s_loaded;
        else if (s_enable) begin
            round <= (step == MIDSTATE || step == INNER || step == OUTER) ? round + 1'b1 : '0;
            working <= {g, f, e, d + first, c, b, a, first + second};
            schedule <= {next, schedule[15:1]};
            case (step)
                HEADER: if (s_in_valid) begin
                    step <= TAIL;
                    midstate <= INITIAL;
                    schedule <= big_endian(s_in);
                end else schedule <= schedule;
                TAIL: begin
                    // The first block waits in the schedule until the rest of the header is there.
                    schedule <= schedule;
                    if (s_in_valid) begin
                        tail <= big_endian(s_in)[95:0];
                        nonce <= s_in[127:96];
                        {step, chained, working} <= {MIDSTATE, INITIAL, INITIAL};
                    end
                end
                MIDSTATE: if (round == 6'd63) begin
                    midstate <= hashed;
                    {step, chained, working} <= {INNER, hashed, hashed};
                    schedule <= second_block(tail, nonce);
                end
                INNER: if (round == 6'd63) begin
                    {step, chained, working} <= {OUTER, INITIAL, INITIAL};
                    schedule <= {32'd256, {6{32'd0}}, 32'h8000_0000, hashed};
                end
                OUTER: if (round == 6'd63) begin
                    tried <= tried + 1'b1;
                    if (meets || tried + 32'd1 >= limit[31:0]) begin
                        {step, chained, found} <= {RESULT, hashed, meets};
                    end else begin
                        nonce <= nonce + 1'b1;
                        {step, chained, working} <= {INNER, midstate, midstate};
                        schedule <= second_block(tail, nonce + 32'd1);
                    end
                end
                RESULT: if (s_out_ready) step <= ENDED;
                default: ;
            endcase
        end
endmodule
