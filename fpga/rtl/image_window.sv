// A streaming accelerator that needs the neighbours of each pixel. An image has rows of WIDTH lines (1 to 16) of 64 gray pixels, a
// byte each, and HEIGHT rows. For each line of the image the module hands out three rows of 66 pixels: the line with a pixel to
// the left and to the right, and those above and below. At the edges of the image the nearest pixel is repeated.
module image_window #(
    parameter logic [127:0] GUID = 128'h0,
    parameter int PERIOD = 1
) (
`include "accelerator_ports.svh"
    ,
    output logic [65:0][7:0] above,
    output logic [65:0][7:0] middle,
    output logic [65:0][7:0] below,
    input  logic [511:0]     filtered
);
    localparam int COLUMNS = 16;
    localparam int STATE = 32 + 5 + 24 + 512 + 2 * COLUMNS * 512;
    logic s_start, s_load, s_enable, s_in_valid, s_in_ready, s_last, s_out_valid, s_out_ready, s_select;
    logic [511:0] s_in;
    logic [63:0] s_value, width_register, height_register;
    logic [STATE-1:0] s_loaded;

    // The step at (row, column) takes a line and hands out the line to the left of it in the row above, so a row has a step more
    // than lines, and the image a row more.
    logic [31:0] row;
    logic [4:0] column, width;
    // The last pixels of the three lines to the left of those that are handed out; the line that was taken before.
    logic [7:0] left_above, left_middle, left_below;
    logic [63:0][7:0] newest;
    // The two rows above, where the step has passed: this one and the one before.
    logic [COLUMNS-1:0][63:0][7:0] upper, lower;
    logic ended, takes, gives, steps;

    stream_shell #(.GUID(GUID), .STATE(STATE), .PERIOD(PERIOD)) shell (
        .*, .s_state({row, column, left_above, left_middle, left_below, newest, upper, lower}), .s_out(filtered),
        .s_idle(takes || ended)
    );
    plain_register #(.AT(12'h100)) width_at (.*, .value(width_register));
    plain_register #(.AT(12'h108)) height_at (.*, .value(height_register));
    assign s_value = address == 12'h100 ? width_register : address == 12'h108 ? height_register : '0;
    assign width = width_register[4:0] == '0 || width_register[4:0] > 5'(COLUMNS) ? 5'd1 : width_register[4:0];

    assign ended = row > height_register[31:0];
    assign takes = !ended && row < height_register[31:0] && column < width;
    assign gives = !ended && row != '0 && column != '0;
    // Lines beyond the image are dropped.
    assign s_in_ready = ended || (takes && (!gives || s_out_ready));
    assign s_out_valid = gives && (!takes || s_in_valid);
    assign steps = s_enable && !ended && (!takes || s_in_valid) && (!gives || s_out_ready);

    // Lines at the step's column and to the left of it.
    logic [63:0][7:0] center_above, center_middle, right_above, right_middle, right_below, taken;
    logic first;
    logic [3:0] here, left;
    assign here = column[3:0];
    assign left = column[3:0] - 4'd1;
    assign first = row == 32'd1;
    assign taken = takes ? s_in : lower[here];
    assign center_middle = lower[left];
    assign center_above = first ? center_middle : upper[left];
    assign right_middle = lower[here];
    assign right_above = first ? right_middle : upper[here];
    assign right_below = taken;
    function automatic logic [65:0][7:0] widened(logic [63:0][7:0] line, logic [7:0] to_left, logic [7:0] to_right);
        return {column == width ? line[63] : to_right, line, column == 5'd1 ? line[0] : to_left};
    endfunction
    assign above = widened(center_above, left_above, right_above[0]);
    assign middle = widened(center_middle, left_middle, right_middle[0]);
    assign below = widened(newest, left_below, right_below[0]);

    always_ff @(posedge clk)
        if (s_start) begin
            // Rows of an image of the port's last user must not be in a saved state.
            {row, column, left_above, left_middle, left_below, newest} <= '0;
            upper <= '0;
            lower <= '0;
        end else if (s_load) {row, column, left_above, left_middle, left_below, newest, upper, lower} <= s_loaded;
        else if (steps) begin
            newest <= taken;
            {left_above, left_middle, left_below} <= {center_above[63], center_middle[63], newest[63]};
            if (column != '0) begin
                upper[left] <= lower[left];
                lower[left] <= newest;
            end
            column <= column == width ? '0 : column + 1'b1;
            if (column == width) row <= row + 1'b1;
        end
endmodule
