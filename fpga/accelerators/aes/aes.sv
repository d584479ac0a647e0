// AES: encrypts lines with AES-128, each block of 16 bytes by itself (ECB). The four blocks of a line go through one round per
// step; the round's key is made on the way.
module aes #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    localparam int STATE = 1 + 4 + 8 + 128 + 512;
    localparam logic [7:0] SUBSTITUTES [256] = '{
        8'h63, 8'h7c, 8'h77, 8'h7b, 8'hf2, 8'h6b, 8'h6f, 8'hc5, 8'h30, 8'h01, 8'h67, 8'h2b, 8'hfe, 8'hd7, 8'hab, 8'h76,
        8'hca, 8'h82, 8'hc9, 8'h7d, 8'hfa, 8'h59, 8'h47, 8'hf0, 8'had, 8'hd4, 8'ha2, 8'haf, 8'h9c, 8'ha4, 8'h72, 8'hc0,
        8'hb7, 8'hfd, 8'h93, 8'h26, 8'h36, 8'h3f, 8'hf7, 8'hcc, 8'h34, 8'ha5, 8'he5, 8'hf1, 8'h71, 8'hd8, 8'h31, 8'h15,
        8'h04, 8'hc7, 8'h23, 8'hc3, 8'h18, 8'h96, 8'h05, 8'h9a, 8'h07, 8'h12, 8'h80, 8'he2, 8'heb, 8'h27, 8'hb2, 8'h75,
        8'h09, 8'h83, 8'h2c, 8'h1a, 8'h1b, 8'h6e, 8'h5a, 8'ha0, 8'h52, 8'h3b, 8'hd6, 8'hb3, 8'h29, 8'he3, 8'h2f, 8'h84,
        8'h53, 8'hd1, 8'h00, 8'hed, 8'h20, 8'hfc, 8'hb1, 8'h5b, 8'h6a, 8'hcb, 8'hbe, 8'h39, 8'h4a, 8'h4c, 8'h58, 8'hcf,
        8'hd0, 8'hef, 8'haa, 8'hfb, 8'h43, 8'h4d, 8'h33, 8'h85, 8'h45, 8'hf9, 8'h02, 8'h7f, 8'h50, 8'h3c, 8'h9f, 8'ha8,
        8'h51, 8'ha3, 8'h40, 8'h8f, 8'h92, 8'h9d, 8'h38, 8'hf5, 8'hbc, 8'hb6, 8'hda, 8'h21, 8'h10, 8'hff, 8'hf3, 8'hd2,
        8'hcd, 8'h0c, 8'h13, 8'hec, 8'h5f, 8'h97, 8'h44, 8'h17, 8'hc4, 8'ha7, 8'h7e, 8'h3d, 8'h64, 8'h5d, 8'h19, 8'h73,
        8'h60, 8'h81, 8'h4f, 8'hdc, 8'h22, 8'h2a, 8'h90, 8'h88, 8'h46, 8'hee, 8'hb8, 8'h14, 8'hde, 8'h5e, 8'h0b, 8'hdb,
        8'he0, 8'h32, 8'h3a, 8'h0a, 8'h49, 8'h06, 8'h24, 8'h5c, 8'hc2, 8'hd3, 8'hac, 8'h62, 8'h91, 8'h95, 8'he4, 8'h79,
        8'he7, 8'hc8, 8'h37, 8'h6d, 8'h8d, 8'hd5, 8'h4e, 8'ha9, 8'h6c, 8'h56, 8'hf4, 8'hea, 8'h65, 8'h7a, 8'hae, 8'h08,
        8'hba, 8'h78, 8'h25, 8'h2e, 8'h1c, 8'ha6, 8'hb4, 8'hc6, 8'he8, 8'hdd, 8'h74, 8'h1f, 8'h4b, 8'hbd, 8'h8b, 8'h8a,
        8'h70, 8'h3e, 8'hb5, 8'h66, 8'h48, 8'h03, 8'hf6, 8'h0e, 8'h61, 8'h35, 8'h57, 8'hb9, 8'h86, 8'hc1, 8'h1d, 8'h9e,
        8'he1, 8'hf8, 8'h98, 8'h11, 8'h69, 8'hd9, 8'h8e, 8'h94, 8'h9b, 8'h1e, 8'h87, 8'he9, 8'hce, 8'h55, 8'h28, 8'hdf,
        8'h8c, 8'ha1, 8'h89, 8'h0d, 8'hbf, 8'he6, 8'h42, 8'h68, 8'h41, 8'h99, 8'h2d, 8'h0f, 8'hb0, 8'h54, 8'hbb, 8'h16
    };
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in;
    logic [63:0] s_value, key_low, key_high;
    logic [STATE-1:0] s_loaded;
    logic busy;
    logic [3:0] round;
    // Bytes in the order of memory, the first one lowest.
    logic [7:0] constant;
    logic [15:0][7:0] key, next_key;
    logic [3:0][15:0][7:0] blocks, next_blocks;
    stream_shell #(.GUID(128'h6165_7300_4a5e_4f0a_9d1b_2f4f_0c11_0008), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state({busy, round, constant, key, blocks}), .s_out(blocks), .s_idle(!busy)
    );
    plain_register #(.AT(12'h100)) low_register (.*, .value(key_low));
    plain_register #(.AT(12'h108)) high_register (.*, .value(key_high));
    assign s_value = address == 12'h100 ? key_low : address == 12'h108 ? key_high : '0;

    function automatic logic [7:0] doubled(logic [7:0] x);
        return {x[6:0], 1'b0} ^ (x[7] ? 8'h1b : 8'h00);
    endfunction
    always_comb begin
        for (int i = 0; i < 4; i++)
            next_key[i] = key[i] ^ SUBSTITUTES[key[12+(i+1)%4]] ^ (i == 0 ? constant : 8'h00);
        for (int i = 4; i < 16; i++) next_key[i] = key[i] ^ next_key[i-4];
        for (int block = 0; block < 4; block++)
            for (int column = 0; column < 4; column++) begin
                automatic logic [3:0][7:0] x;
                for (int row = 0; row < 4; row++) x[row] = SUBSTITUTES[blocks[block][4*((column+row)%4)+row]];
                for (int row = 0; row < 4; row++)
                    next_blocks[block][4*column+row] = next_key[4*column+row] ^ (round == 4'd9 ? x[row]
                        : doubled(x[row]) ^ doubled(x[(row+1)%4]) ^ x[(row+1)%4] ^ x[(row+2)%4] ^ x[(row+3)%4]);
            end
    end

    assign s_in_ready = !busy;
    assign s_out_valid = busy && round == 4'd10;
    always_ff @(posedge clk)
        if (s_start) {busy, round, constant, key, blocks} <= '0;
        else if (s_load) {busy, round, constant, key, blocks} <= s_loaded;
        else if (s_enable) begin
            if (!busy) begin
                if (s_in_valid) begin
                    {busy, round, constant, key} <= {1'b1, 4'd0, 8'h01, key_high, key_low};
                    blocks <= s_in ^ {4{key_high, key_low}};
                end
            end else if (round != 4'd10) begin
                round <= round + 1'b1;
                constant <= doubled(constant);
                {key, blocks} <= {next_key, next_blocks};
            end else if (s_out_ready) busy <= 1'b0;
        end
endmodule
