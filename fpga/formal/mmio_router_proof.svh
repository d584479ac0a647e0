// Proof (e): an MMIO access reaches exactly one page, or none that exists, and gets exactly one answer in bounded time.
`include "started.svh"

wire f_taken = take_write || take_read;
wire f_answered = (bvalid && bready) || (rvalid && rready);
logic f_pending, f_selected;
logic [7:0] f_time;
always_ff @(posedge clk)
    if (reset) begin
        f_pending  <= 1'b0;
        f_selected <= 1'b0;
        f_time     <= '0;
    end else begin
        if (f_taken) f_pending <= 1'b1;
        else if (f_answered) f_pending <= 1'b0;
        // If a page got the access, and cycles since it was taken.
        if (f_taken) f_selected <= 1'b0;
        else if (local_select || port_select != '0) f_selected <= 1'b1;
        f_time <= (f_taken || !f_pending) ? '0 : f_time + 1'b1;
    end
wire f_exists = int'(page) == SHELL_PAGES || (target & ~hold & ~silent) != '0;

always_comb
    if (f_started) begin
        // One access at a time, and one answer for each.
        assert (f_pending == (state != IDLE));
        if (f_taken) assert (!f_pending && !(take_write && take_read));
        if (bvalid || rvalid) assert (f_pending && bvalid != rvalid && bvalid == access_write);
        // One page, and the right one.
        assert ($onehot0({local_select, port_select}));
        if (local_select) assert (f_pending && !f_selected && int'(page) == SHELL_PAGES && lanes_fit);
        for (int i = 0; i < PORTS; i++)
            if (port_select[i]) assert (f_pending && !f_selected && int'(page) == SHELL_PAGES + 1 + i && !hold[i] && !silent[i]);
        if (state == DECODE || state == LOCAL) assert (!f_selected);
        if (state == WAIT) assert (f_selected && target != '0 && int'(page) != SHELL_PAGES);
        if (state == LOCAL) assert (int'(page) == SHELL_PAGES && lanes_fit);
        // In bounded time.
        if (state == WAIT) assert (waited < TIME'(TIMEOUT) && f_time == 8'(waited) + 8'd1);
        if (state == DECODE) assert (f_time == 8'd0);
        if (state == LOCAL) assert (f_time == 8'd1);
        if (f_pending && !bvalid && !rvalid) assert (f_time <= 8'(TIMEOUT + 1));
        assert (state <= ANSWER);
    end

// The value of a read comes from the page that was selected in this access, or is all ones.
logic [63:0] f_value;
always_ff @(posedge clk)
    if (f_taken) f_value <= '1;
    else if (local_select) f_value <= local_value;
    else if (state == WAIT)
        for (int i = 0; i < PORTS; i++)
            if (int'(page) == SHELL_PAGES + 1 + i && port_answers[i]) f_value <= port_value[i];
always_comb
    if (f_started && (state == WAIT || state == ANSWER)) assert (rdata == f_value);

wire f_cover_local = f_started && f_answered && f_selected && int'(page) == SHELL_PAGES;
wire f_cover_port = f_started && f_answered && f_selected && target != '0 && rvalid && rdata != '1;
wire f_cover_silent = f_started && silent != '0;
wire f_cover_outside = f_started && outside;

// A state that must be reachable: the claim that it is not is refuted from reset.
`ifdef REACH
always_comb assert (!(`REACH));
`endif
