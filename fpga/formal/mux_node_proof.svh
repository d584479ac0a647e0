// Proof (d): a node loses, duplicates, invents and reorders nothing, keeps bursts together, and lets no input wait too long.
`include "started.svh"

// Items carry their input's number and a sequence number of their input.
localparam int SEQUENCE = 3;
logic [INPUTS-1:0][SEQUENCE-1:0] f_in, f_out;
wire f_spare_valid = out_stage.spare_valid;
wire [WIDTH+2:0] f_spare = out_stage.spare;
wire [3:0] f_out_source = out_item[3:0], f_spare_source = f_spare[3:0];
wire [SEQUENCE-1:0] f_out_number = out_item[4+:SEQUENCE], f_spare_number = f_spare[4+:SEQUENCE];

always_comb
    for (int i = 0; i < INPUTS; i++)
        if (in_valid[i]) assume (in_item[i][3:0] == 4'(i) && in_item[i][4+:SEQUENCE] == f_in[i]);
always_ff @(posedge clk)
    for (int i = 0; i < INPUTS; i++)
        if (reset) begin
            f_in[i]  <= '0;
            f_out[i] <= '0;
        end else begin
            f_in[i]  <= f_in[i] + SEQUENCE'(in_valid[i] && in_ready[i]);
            f_out[i] <= f_out[i] + SEQUENCE'(out_valid && out_ready && f_out_source == 4'(i));
        end
always_comb
    if (f_started) begin
        if (f_spare_valid) assert (out_valid && f_spare_source < 4'(INPUTS));
        if (out_valid) assert (f_out_source < 4'(INPUTS));
        for (int i = 0; i < INPUTS; i++) begin
            // Nothing is lost, duplicated or invented ...
            assert (SEQUENCE'(f_in[i] - f_out[i])
                == SEQUENCE'(out_valid && f_out_source == 4'(i)) + SEQUENCE'(f_spare_valid && f_spare_source == 4'(i)));
            // ... or reordered.
            if (out_valid && f_out_source == 4'(i)) assert (f_out_number == f_out[i]);
            if (f_spare_valid && f_spare_source == 4'(i))
                assert (f_spare_number == f_out[i] + SEQUENCE'(out_valid && f_out_source == 4'(i)));
        end
        // One item at most is taken.
        assert ($countones(in_valid & in_ready) <= 1);
    end

// A burst is not interleaved: after an item that is not the last of its burst comes one of the same input.
logic f_open;
logic [3:0] f_open_source;
always_ff @(posedge clk)
    if (reset) f_open <= 1'b0;
    else if (out_valid && out_ready) begin
        f_open        <= !out_last;
        f_open_source <= f_out_source;
    end
wire f_spare_last = f_spare[WIDTH+2];
always_comb
    if (f_started) begin
        if (out_valid && f_open) assert (f_out_source == f_open_source);
        if (f_spare_valid && !out_last) assert (f_spare_source == f_out_source);
        // The newest item decides if the node is in a burst.
        if (f_spare_valid) begin
            assert (bursting == !f_spare_last);
            if (bursting) assert (4'(owner) == f_spare_source);
        end else if (out_valid) begin
            assert (bursting == !out_last);
            if (bursting) assert (4'(owner) == f_out_source);
        end else begin
            assert (bursting == f_open);
            if (bursting) assert (4'(owner) == f_open_source);
        end
        if (bursting) assert (int'(owner) < INPUTS);
        assert (int'(next) < INPUTS);
    end

// Grants to others while an input waits.
localparam int WAITS = 8;
logic [INPUTS-1:0][WAITS-1:0] f_waited;
always_ff @(posedge clk)
    for (int i = 0; i < INPUTS; i++)
        if (reset || !in_valid[i] || in_ready[i]) f_waited[i] <= '0;
        else if (fire && !bursting) f_waited[i] <= f_waited[i] + 1'b1;

if (!WEIGHTED) begin : waits
    // Round robin: at most INPUTS - 1 grants, less the distance that the pointer has covered. In a burst the pointer has moved on.
    for (genvar i = 0; i < INPUTS; i++) begin : of
        wire [7:0] distance = (8'(i) >= 8'(next)) ? 8'(i) - 8'(next) : 8'(i) + 8'(INPUTS) - 8'(next);
        always_comb
            if (f_started && in_valid[i]) begin
                assert (f_waited[i] <= WAITS'(INPUTS - 1));
                assert (8'(f_waited[i]) + distance <= 8'(INPUTS - 1) || f_waited[i] == '0);
            end
    end
end else begin : waits
    // By weight: at most twice the credit that a round gives to the others.
    logic [INPUTS-1:0][WEIGHT-1:0] f_weight;
    always_ff @(posedge clk) f_weight <= weight;
    always_comb if (f_started) assume (weight == f_weight);
    logic [INPUTS-1:0][WAITS-1:0] quanta, left;
    for (genvar i = 0; i < INPUTS; i++) begin : of
        wire signed [CREDIT-1:0] mine = $signed(weighted.credit[i]);
        always_comb assume (weight[i] < 4);
        assign quanta[i] = weight[i] == '0 ? WAITS'(4) : WAITS'({weight[i], 2'b00});
        assign left[i] = mine[CREDIT-1] ? '0 : WAITS'(unsigned'(mine));
        always_comb
            if (f_started) begin
                assert (mine >= -CREDIT'(3));
                assert (mine[CREDIT-1] || left[i] <= quanta[i]);
            end
    end
    for (genvar i = 0; i < INPUTS; i++) begin : bound
        logic [WAITS-1:0] others, credits;
        always_comb begin
            others = '0;
            credits = '0;
            for (int j = 0; j < INPUTS; j++)
                if (j != i) begin
                    others = others + quanta[j];
                    credits = credits + left[j];
                end
            if (f_started && in_valid[i]) begin
                assert (f_waited[i] <= 2 * others);
                if (f_waited[i] != '0) assert (f_waited[i] + credits + (left[i] == '0 ? others : '0) <= 2 * others);
            end
        end
    end
end

wire f_cover_burst = f_started && out_valid && out_ready && f_open && out_last;
wire f_cover_full = f_started && f_spare_valid && !out_ready;
wire f_cover_waited = f_started && f_waited[0] == WAITS'(INPUTS - 1) && in_valid[0] && in_ready[0];

// A state that must be reachable: the claim that it is not is refuted from reset.
`ifdef REACH
always_comb assert (!(`REACH));
`endif
