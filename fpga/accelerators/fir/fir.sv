// FIR: finite impulse response filter of 16 taps. A line is 32 samples of 16 bits, signed; a result is the sum of the last 16
// samples times their coefficients, shifted right by 15 and clipped. Samples before the first one are 0.
module fir #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    localparam int TAPS = 16, SAMPLES = 32;
    localparam int STATE = 16 * (TAPS - 1);
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in, s_out;
    logic [63:0] s_value;
    // The last 15 samples of the lines before, the newest at the top.
    logic [STATE-1:0] s_loaded, history;
    // Four coefficients in each register; the first one is for the newest sample.
    logic [3:0][63:0] taps;
    stream_shell #(.GUID(128'h6669_7200_4a5e_4f0a_9d1b_2f4f_0c11_0004), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state(history), .s_idle(1'b1)
    );
    for (genvar i = 0; i < 4; i++) begin : coefficients
        plain_register #(.AT(12'h100 + 12'(8 * i))) register (.*, .value(taps[i]));
    end
    assign s_value = address[11:5] == 7'h08 ? taps[address[4:3]] : '0;
    assign s_out_valid = s_in_valid;
    assign s_in_ready = s_out_ready;

    logic [16*(SAMPLES+TAPS-1)-1:0] samples;
    assign samples = {s_in, history};
    function automatic logic [15:0] clipped(logic signed [39:0] sum);
        logic signed [39:0] scaled = sum >>> 15;
        return scaled > 40'sd32767 ? 16'h7fff : scaled < -40'sd32768 ? 16'h8000 : scaled[15:0];
    endfunction
    always_comb
        for (int i = 0; i < SAMPLES; i++) begin
            automatic logic signed [39:0] sum = '0;
            for (int tap = 0; tap < TAPS; tap++)
                sum += 40'(signed'(samples[16*(i+TAPS-1-tap)+:16]) * 32'(signed'(taps[tap/4][16*(tap%4)+:16])));
            s_out[16*i+:16] = clipped(sum);
        end
    always_ff @(posedge clk)
        if (s_start) history <= '0;
        else if (s_load) history <= s_loaded;
        else if (s_enable && s_in_valid && s_in_ready) history <= s_in[511-:STATE];
endmodule
