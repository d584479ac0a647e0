// Proof (c): a slice never changes while a request is under way, and a port does not leave reset then.
`include "started.svh"

logic f_hold, f_drained, f_enable, f_reset_bit;
logic [ADDRESS-1:0] f_offset, f_first, f_last;
always_ff @(posedge clk) begin
    f_hold      <= hold;
    f_drained   <= drained;
    f_reset_bit <= reset_bit;
    f_enable    <= enable;
    f_offset    <= offset;
    f_first     <= first;
    f_last      <= last;
end
logic f_twice = 1'b0;
always_ff @(posedge clk) f_twice <= f_started;
wire f_changed = enable != f_enable || offset != f_offset || first != f_first || last != f_last;
always_comb
    if (f_twice) begin
        if (f_changed) assert (f_hold && f_drained && f_reset_bit);
        if (f_hold && !hold) assert (f_drained && !f_reset_bit);
        if (f_reset_bit) assert (hold);
    end

wire f_cover_changed = f_twice && f_changed;
wire f_cover_refused = f_twice && slice_refused;
wire f_cover_released = f_twice && f_hold && !hold;

`include "reach.svh"
