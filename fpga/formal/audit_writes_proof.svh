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

// The beat that the auditor holds, as the accelerator gave it, and the burst that it belongs to.
logic f_holds, f_h_first, f_h_fence;
logic [ADDRESS-1:0] f_h_address, f_h_sum, f_b_address, f_b_sum;
logic [1:0] f_h_lines, f_b_lines, f_left;
logic [TAG-1:0] f_h_tag, f_b_tag;
logic [DATA-1:0] f_h_data;
logic f_drops;
// A fence; a first beat; one that fits; the burst's last beat; and what is to be done with this beat when it is consumed.
wire f_ends = f_holds && !hold && consume;
wire f_is_fence = f_left == '0 && f_h_fence;
wire f_is_header = f_left == '0 && !f_h_fence;
wire f_good = f_h_first && f_fits(f_h_sum, f_h_lines);
wire f_refuses = f_is_header ? !f_good : !f_is_fence && f_drops;
wire f_is_last = f_is_header ? f_h_lines == '0 || !f_h_first : f_left == 2'd1;
wire f_passes = f_ends && !f_is_fence && !f_refuses;
wire f_answers = f_ends && (f_is_fence || (f_refuses && f_is_last));
wire [HEAD+DATA-1:0] f_entry = f_is_header ? {f_h_tag, f_h_lines, f_h_sum, 1'b1, f_is_last, f_h_data}
    : {f_b_tag, f_b_lines, f_b_sum, 1'b0, f_is_last, f_h_data};
logic [DEPTH-1:0][HEAD+DATA-1:0] f_queue;
logic [3:0] f_put, f_whole, f_get;
always_ff @(posedge clk) begin
    if (reset || hold) f_holds <= 1'b0;
    else if (wr_valid && wr_ready) f_holds <= 1'b1;
    else if (f_ends) f_holds <= 1'b0;
    if (wr_valid && wr_ready) begin
        {f_h_first, f_h_fence, f_h_address, f_h_lines, f_h_tag, f_h_data} <= {wr_first, wr_fence, wr_address, wr_lines, wr_tag, wr_data};
        f_h_sum <= wr_address + offset;
    end
    if (reset || hold) f_left <= '0;
    else if (f_ends && f_is_header) begin
        f_left <= f_is_last ? '0 : f_h_lines;
        f_drops <= !f_good;
        {f_b_address, f_b_sum, f_b_lines, f_b_tag} <= {f_h_address, f_h_sum, f_h_lines, f_h_tag};
    end else if (f_ends && !f_is_fence) f_left <= f_left - 2'd1;
    if (reset) {f_put, f_whole, f_get} <= '0;
    else begin
        if (hold) f_put <= f_whole;
        else if (f_passes) f_put <= f_put + 4'd1;
        if (f_passes && f_is_last) f_whole <= f_put + 4'd1;
        if (out_valid && out_ready) f_get <= f_get + 4'd1;
    end
    if (f_passes) f_queue[f_put[2:0]] <= f_entry;
end
always_comb
    if (f_started) begin
        assert (held == f_holds && left == f_left);
        if (f_holds) begin
            assert ({held_first, held_fence, held_address, held_sum} == {f_h_first, f_h_fence, f_h_address, f_h_sum});
            assert ({held_lines, held_tag, held_data} == {f_h_lines, f_h_tag, f_h_data});
        end
        if (f_left != '0) begin
            assert (dropping == f_drops && {burst_sum, burst_lines, burst_tag} == {f_b_sum, f_b_lines, f_b_tag});
            if (f_drops) assert (dropped_address == f_b_address && dropped_fault != FAULT_NONE);
        end
        // Every beat of a burst that fits leaves once, in order, with its data; what is refused never does.
        assert (put == f_put && complete == f_whole && get == f_get);
        for (int i = 0; i < DEPTH; i++) begin
            automatic logic [2:0] place = get[2:0] + 3'(i);
            if (4'(i) < used) assert (buffer[place] == f_queue[place]);
        end
        assert (out_valid == (f_whole != f_get));
        if (out_valid) assert ({out_tag, out_lines, out_address, out_first, out_last, out_data} == f_queue[f_get[2:0]]);
        // Nothing waits for no reason: refused beats and fences for a response of memory in this cycle, fences for writes under
        // way, bursts for room and permission, the rest of a burst for nothing.
        if (f_holds && !hold)
            assert (consume == (f_is_fence ? f_outstanding == '0 && used == '0 && !f_of_port
                : f_refuses ? !f_is_last || !f_of_port
                : !f_is_header || (used + 4'(f_h_lines) < 4'(DEPTH) && underway != COUNT'(UNDERWAY) && permit)));
        assert (wr_ready == (!hold && (!f_holds || f_ends)));
    end

// A fence is answered once, without an error, with no write under way. A refused burst is answered once, with an error.
logic f_told, f_told_error;
logic [TAG-1:0] f_told_tag;
always_ff @(posedge clk) begin
    f_told       <= f_answers && !reset;
    f_told_error <= f_refuses;
    f_told_tag   <= f_left != '0 ? f_b_tag : f_h_tag;
end
always_comb
    if (f_started) begin
        if (f_ends && f_is_fence) assert (f_outstanding == '0 && used == '0 && underway == '0);
        assert (done_valid == (f_mine || f_told) && !(f_mine && f_told));
        if (f_told) assert (done_tag == f_told_tag && done_error == f_told_error);
        assert (refused == (f_answers && f_refuses));
        if (refused) begin
            assert (refused_fault != FAULT_NONE);
            assert (refused_address == (f_left != '0 ? f_b_address : f_h_address));
            assert (refused_lines == (f_left != '0 ? f_b_lines : f_h_lines));
        end
    end

wire f_cover_burst = f_started && out_valid && out_ready && out_last && out_lines == 2'd3;
wire f_cover_full = f_started && used == 4'(DEPTH);
wire f_cover_refused = f_started && refused && refused_lines == 2'd1;
wire f_cover_cut = f_started && hold && !f_hold && used > f_complete && f_complete != '0;
wire f_cover_fence = f_started && answer && !answer_error && f_get == 4'd1;
wire f_cover_told = f_started && f_told && f_told_error && done_tag != wr_tag && f_left == '0 && f_b_lines == 2'd1;

`include "reach.svh"
