// SW: Smith-Waterman local alignment. The first line is a query of 64 letters, the other lines a text; a line with the best score
// of an alignment is written at the end: 2 for equal letters, -1 for different ones and for each letter left out. A letter of the
// text enters the first of 64 cells per step and passes all of them.
module sw #(
    parameter int PERIOD = 4
) (
`include "accelerator_ports.svh"
);
    localparam int CELLS = 64;
    // Letter, its presence, the cell's score for the last letter, the score that came from the cell before at the last letter, and
    // the best score of the cell.
    localparam int CELL = 8 + 1 + 3 * 16;
    localparam int STATE = 4 + 6 + 7 + 2 * 512 + CELLS * CELL;
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in;
    logic [STATE-1:0] s_loaded;
    // The query is there; letters of a line are left; it is the last one; the result is to be written.
    logic ready, busy, last, result_due;
    logic [5:0] letter;
    // Steps until the last letter has passed all cells.
    logic [6:0] passing;
    logic [CELLS-1:0][7:0] query, text, letters;
    logic [CELLS-1:0] present;
    logic [CELLS-1:0][15:0] scores, diagonals, bests;
    stream_shell #(.GUID(128'h7377_0000_4a5e_4f0a_9d1b_2f4f_0c11_000b), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state({ready, busy, last, result_due, letter, passing, query, text, letters, present, scores, diagonals, bests}),
        .s_out(512'(best)), .s_idle(!busy && passing == '0 && !result_due), .s_value(64'd0)
    );

    function automatic logic [15:0] more(logic [15:0] a, logic [15:0] b);
        return a > b ? a : b;
    endfunction
    // Scores are never below 0, so taking one away stops there.
    function automatic logic [15:0] less(logic [15:0] a);
        return a == '0 ? '0 : a - 16'd1;
    endfunction
    logic [CELLS-1:0][7:0] entering;
    logic [CELLS-1:0] enters;
    logic [CELLS-1:0][15:0] above, next;
    always_comb
        for (int i = 0; i < CELLS; i++) begin
            entering[i] = i == 0 ? text[letter] : letters[i-1];
            enters[i] = i == 0 ? busy : present[i-1];
            above[i] = i == 0 ? '0 : scores[i-1];
            next[i] = more(query[i] == entering[i] ? diagonals[i] + 16'd2 : less(diagonals[i]), more(less(scores[i]), less(above[i])));
        end
    logic [15:0] best;
    always_comb begin
        best = '0;
        for (int i = 0; i < CELLS; i++) best = more(best, bests[i]);
    end

    assign s_in_ready = !busy && passing == '0 && !result_due;
    assign s_out_valid = result_due;
    always_ff @(posedge clk)
        if (s_start)
            {ready, busy, last, result_due, letter, passing, query, text, letters, present, scores, diagonals, bests} <= '0;
        else if (s_load)
            {ready, busy, last, result_due, letter, passing, query, text, letters, present, scores, diagonals, bests} <= s_loaded;
        else if (s_enable) begin
            if (s_in_valid && s_in_ready) begin
                ready <= 1'b1;
                if (!ready) query <= s_in;
                else {busy, last, letter, text} <= {1'b1, s_last, 6'd0, s_in};
                if (!ready && s_last) result_due <= 1'b1;
            end
            if (busy) begin
                letter <= letter + 1'b1;
                if (letter == 6'd63) begin
                    busy <= 1'b0;
                    if (last) passing <= 7'd64;
                end
            end
            if (passing != '0) begin
                passing <= passing - 1'b1;
                if (passing == 7'd1) result_due <= 1'b1;
            end
            if (result_due && s_out_ready) result_due <= 1'b0;
            // The cells stand still while no letter enters the first one and none has to pass.
            if (busy || passing != '0)
                for (int i = 0; i < CELLS; i++) begin
                    letters[i] <= entering[i];
                    present[i] <= enters[i];
                    if (enters[i]) begin
                        scores[i] <= next[i];
                        diagonals[i] <= above[i];
                        bests[i] <= more(bests[i], next[i]);
                    end
                end
        end
endmodule
