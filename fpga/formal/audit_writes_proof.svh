// Proofs (a) and (b) for writes.
`include "started.svh"
`include "slice_environment.svh"

wire f_of_port = b_valid && b_port == port;
logic [COUNT+3:0] f_outstanding;
always_ff @(posedge clk)
    if (reset) f_outstanding <= '0;
    else f_outstanding <= f_outstanding + (COUNT + 4)'(out_valid && out_ready && out_last) - (COUNT + 4)'(f_of_port);
always_comb if (f_of_port) assume (f_outstanding != '0);

// The buffer, beat by beat from `get` on.
wire [3:0] f_complete = complete - get;
logic [3:0] f_lasts;
always_comb begin
    f_lasts = '0;
    if (f_started) begin
        assert (used <= 4'(DEPTH) && f_complete <= used);
        for (int i = 0; i < DEPTH; i++) begin
            automatic logic [2:0] place = get[2:0] + 3'(i);
            automatic logic [HEAD+DATA-1:0] beat = buffer[place];
            automatic logic [2:0] after = get[2:0] + 3'(i + 1);
            automatic logic [HEAD+DATA-1:0] next = buffer[after];
            if (4'(i) < used) begin
                // (a) What lies in the buffer lies in the slice.
                assert (f_fits(beat[DATA+2+:ADDRESS], beat[DATA+2+ADDRESS+:2]));
                // Bursts are whole: a first beat follows a last one and nothing else, and the address stays.
                if (4'(i + 1) < used) begin
                    assert (next[DATA+1] == beat[DATA]);
                    if (!beat[DATA]) assert (next[DATA+2+:ADDRESS] == beat[DATA+2+:ADDRESS]);
                end
                if (4'(i + 1) == f_complete) assert (beat[DATA]);
                if (4'(i) >= f_complete) assert (!beat[DATA]);
                if (beat[DATA] && 4'(i) < f_complete) f_lasts = f_lasts + 4'd1;
            end
        end
        // A burst in the making: its beats are behind the complete ones, and there is room for the rest.
        if (left != 2'd0 && !dropping) begin
            assert (f_fits(burst_sum, burst_lines) && underway != COUNT'(UNDERWAY));
            assert (used > f_complete && {1'b0, used} + 5'(left) <= 5'(DEPTH));
            assert (buffer[put[2:0]-3'd1][DATA+2+:ADDRESS] == burst_sum);
            if (used - f_complete == 4'd1) assert (buffer[put[2:0]-3'd1][DATA+1]);
        end else assert (used == f_complete || f_hold);
        if (used > f_complete && !f_hold) assert (left != 2'd0 && !dropping);
    end
end

// (a)
always_comb if (f_started && out_valid) assert (f_fits(out_address, out_lines) && out_port == port);

// (b)
always_comb
    if (f_started) begin
        assert ((COUNT + 4)'(underway) == f_outstanding + (COUNT + 4)'(f_lasts));
        assert (underway <= COUNT'(UNDERWAY) && f_outstanding <= (COUNT + 4)'(UNDERWAY));
        if (idle) assert (f_outstanding == '0 && !out_valid);
        if (f_hold && !hold) assert (underway == '0 && !held && left == '0);
    end

logic f_mine, f_answer, f_error;
logic [TAG-1:0] f_tag;
always_ff @(posedge clk) begin
    f_mine   <= f_of_port && !hold && !reset;
    f_answer <= answer && !reset;
    f_tag    <= b_tag;
    f_error  <= b_error;
end
always_comb
    if (f_started && done_valid) begin
        assert (f_mine || f_answer);
        assert (!f_hold);
        if (f_mine) assert (done_tag == f_tag && done_error == f_error);
    end

wire f_cover_burst = f_started && out_valid && out_ready && out_last && out_lines == 2'd3;
wire f_cover_full = f_started && used == 4'(DEPTH);
wire f_cover_refused = f_started && refused && refused_lines == 2'd1;
wire f_cover_cut = f_started && hold && !f_hold && used > f_complete && f_complete != '0;
wire f_cover_fence = f_started && answer && !answer_error;

// A state that must be reachable: the claim that it is not is refuted from reset.
`ifdef REACH
always_comb assert (!(`REACH));
`endif
