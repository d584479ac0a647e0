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

// What was asked for is what the page sees, and only whole halves reach one.
logic f_whole;
logic [BITS-1:0] f_address;
logic [1:0] f_lanes;
logic [63:0] f_data;
always_ff @(posedge clk)
    if (f_taken) begin
        f_whole   <= take_read || wstrb == 8'hff || wstrb == 8'hf0 || wstrb == 8'h0f;
        f_address <= take_read ? araddr : awaddr;
        f_lanes   <= take_read ? 2'b11 : {wstrb == 8'hff || wstrb == 8'hf0, wstrb == 8'hff || wstrb == 8'h0f};
        f_data    <= wdata;
    end
always_comb
    if (f_started && f_pending) begin
        assert (page == f_address[BITS-1:12] && access_address == {f_address[11:3], 3'b0});
        assert (access_data == f_data && lanes_fit == f_whole);
        if (f_whole) assert (access_lanes == f_lanes);
        else assert (!local_select && port_select == '0 && !f_selected);
    end

// A page is silent after it let an access pass, until its port is in reset, and then no more.
logic [PORTS-1:0] f_waiting, f_silent;
logic [7:0] f_waited;
always_ff @(posedge clk)
    if (reset) begin
        f_waiting <= '0;
        f_silent  <= '0;
        f_waited  <= '0;
    end else
        for (int i = 0; i < PORTS; i++) begin
            if (port_select[i]) begin
                f_waiting[i] <= 1'b1;
                f_waited     <= '0;
            end else if (f_waiting[i]) begin
                f_waited <= f_waited + 1'b1;
                if (port_answers[i] || hold[i] || f_waited == 8'(TIMEOUT - 1)) f_waiting[i] <= 1'b0;
            end
            if (hold[i]) f_silent[i] <= 1'b0;
            else if (f_waiting[i] && !port_answers[i] && f_waited == 8'(TIMEOUT - 1)) f_silent[i] <= 1'b1;
        end
always_comb
    if (f_started) begin
        assert (f_waiting == (state == WAIT ? target : '0));
        if (state == WAIT) assert (f_waited == 8'(waited));
        assert (silent == f_silent && port_silent == f_silent);
    end

// An access is an error if no page took it; a page of the VCU says itself if a write was accepted.
logic f_accepted, f_selects;
always_ff @(posedge clk) begin
    f_selects <= port_select != '0 && !reset;
    if (f_taken) f_accepted <= 1'b0;
    else if (local_select) f_accepted <= local_accepted;
    else for (int i = 0; i < PORTS; i++) if (f_waiting[i] && port_answers[i]) f_accepted <= 1'b1;
end
always_comb
    if (f_started) begin
        if (bvalid) assert (bresp == (f_accepted ? 2'b00 : 2'b10));
        if (state != IDLE && state != DECODE) assert (bresp == (f_accepted ? 2'b00 : 2'b10));
        if (state == DECODE || state == LOCAL || state == WAIT) assert (!f_accepted);
    end

// `outside` is a pulse for each access to a page that does not exist, and for nothing else.
logic f_decoded, f_nowhere;
always_ff @(posedge clk) begin
    f_decoded <= f_taken && !reset;
    f_nowhere <= f_decoded && !reset && int'(page) != SHELL_PAGES && target == '0;
end
always_comb
    if (f_started) begin
        assert (f_decoded == (state == DECODE));
        assert (outside == f_nowhere);
        // A select is followed by the wait for an answer.
        if (f_selects) assert (f_waiting != '0);
    end

// Reads and writes that wait for each other: one access of the other kind at most is taken first.
logic [1:0] f_writes_before, f_reads_before;
wire f_write_waits = awvalid && wvalid;
always_ff @(posedge clk)
    if (reset) {f_writes_before, f_reads_before} <= '0;
    else begin
        if (!arvalid || take_read) f_writes_before <= '0;
        else if (take_write) f_writes_before <= f_writes_before + 2'd1;
        if (!f_write_waits || take_write) f_reads_before <= '0;
        else if (take_read) f_reads_before <= f_reads_before + 2'd1;
    end
always_comb
    if (f_started) begin
        assert (f_writes_before <= 2'd1 && f_reads_before <= 2'd1);
        if (f_writes_before != '0) assert (!writes_turn);
        if (f_reads_before != '0) assert (writes_turn);
        // Nothing waits for no reason.
        if (!f_pending && (arvalid || f_write_waits)) assert (f_taken);
    end

wire f_cover_local = f_started && f_answered && f_selected && int'(page) == SHELL_PAGES;
wire f_cover_port = f_started && f_answered && f_selected && target != '0 && rvalid && rdata != '1;
wire f_cover_silent = f_started && silent != '0;
wire f_cover_outside = f_started && outside;
wire f_cover_speaks_again = f_started && f_answered && f_selected && silent[0] && target[1];
wire f_cover_cleared = f_started && f_silent[0] && hold[0];
wire f_cover_part = f_started && bvalid && bready && !f_whole && access_lanes == 2'b11;
wire f_cover_turns = f_started && f_writes_before == 2'd1 && take_read;

`include "reach.svh"
