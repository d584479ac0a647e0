// Every proof begins with one cycle of reset and has none later.
logic f_started = 1'b0;
always_ff @(posedge clk) f_started <= 1'b1;
always_comb assume (reset == !f_started);
