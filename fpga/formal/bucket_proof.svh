// Proof of the rate limit: in any number of cycles from any cycle on, no more lines leave than the rate gives in them and one burst
// of four.
`include "started.svh"
always_comb if (take) assume (allowed);

// Any cycle may begin the window. What the rate has given since, and four lines, less what left; in 1/1,024 of a line.
logic f_begins, f_window;
logic signed [23:0] f_account;
wire [23:0] f_cost = {11'b0, 3'(lines) + 3'd1, 10'b0};
logic f_open;
assign f_open = f_window || f_begins;
always_ff @(posedge clk)
    if (reset || rate == '0) f_window <= 1'b0;
    else if (f_open) begin
        f_window  <= 1'b1;
        f_account <= (f_window && !f_begins ? f_account : 24'sd4096) + 24'(rate) - (take ? $signed(f_cost) : 24'sd0);
    end
// The window is not so long that the account has no room: the rate has not given 8,000 lines yet.
always_comb if (f_window) assume (f_account < 24'sd4_000_000);
always_comb
    if (f_started) begin
        assert (credit <= 14'd4096);
        if (f_window) assert (f_account >= $signed({10'b0, credit}));
        if (f_window) assert (f_account >= 0);
        // A limit does not forbid what it has saved up for, and no limit forbids nothing.
        assert (allowed == (rate == '0 || {10'b0, credit} >= f_cost));
    end

// What is not used is saved up to four lines, so every request is allowed in bounded time.
logic f_waits;
logic [10:0] f_rate;
logic [13:0] f_credit;
always_ff @(posedge clk) begin
    f_waits  <= !take && !reset;
    f_rate   <= rate;
    f_credit <= credit;
end
always_comb
    if (f_started && f_waits) assert (credit == (f_credit + 14'(f_rate) > 14'd4096 ? 14'd4096 : f_credit + 14'(f_rate)));

wire f_cover_denied = f_started && f_window && !allowed;
wire f_cover_taken = f_started && f_window && take && lines == 2'd3 && rate == 11'd2047;

`include "reach.svh"
