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

// The node does not stand still: with room for an item, one is taken in this cycle if one fits: of the burst's input within a
// burst, of any input otherwise.
wire f_room = !f_spare_valid;
wire f_fits = bursting ? in_valid[owner] : in_valid != '0;
always_comb
    if (f_started) begin
        if (f_room && f_fits) assert ((in_valid & in_ready) != '0);
        if (bursting) assert ((in_ready & ~(INPUTS'(1) << owner)) == '0);
    end

// What was given to others while an input waits: requests, or with weights their lines.
localparam int WAITS = 8;
logic [INPUTS-1:0][WAITS-1:0] f_waited;
logic [WAITS-1:0] f_given;
always_comb begin
    f_given = '0;
    for (int i = 0; i < INPUTS; i++)
        if (in_valid[i] && in_ready[i]) f_given = WEIGHTED ? WAITS'(in_lines[i]) + WAITS'(1) : WAITS'(1);
end
always_ff @(posedge clk)
    for (int i = 0; i < INPUTS; i++)
        if (reset || !in_valid[i] || in_ready[i]) f_waited[i] <= '0;
        else if (!bursting) f_waited[i] <= f_waited[i] + f_given;

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
    // By weight: at most twice the lines that a round gives to the others, and the three by which each may exceed its credit.
    logic [INPUTS-1:0][WEIGHT-1:0] f_weight;
    always_ff @(posedge clk) f_weight <= weight;
    always_comb if (f_started) assume (weight == f_weight);
    logic [INPUTS-1:0][WAITS-1:0] quanta;
    logic signed [INPUTS-1:0][WAITS+1:0] left;
    for (genvar i = 0; i < INPUTS; i++) begin : of
        wire signed [CREDIT-1:0] mine = $signed(weighted.credit[i]);
        always_comb assume (weight[i] < 4);
        assign quanta[i] = weight[i] == '0 ? WAITS'(4) : WAITS'({weight[i], 2'b00});
        assign left[i] = (WAITS + 2)'(mine);
        always_comb
            if (f_started) begin
                assert (mine >= -CREDIT'(3));
                assert (mine[CREDIT-1] || WAITS'(unsigned'(mine)) <= quanta[i]);
            end
    end
    // Who has no credit is served only if nobody waits with some.
    logic [INPUTS-1:0] may;
    always_comb begin
        for (int i = 0; i < INPUTS; i++) may[i] = in_valid[i] && $signed(left[i]) > 0;
        for (int i = 0; i < INPUTS; i++)
            if (f_started && !bursting && in_valid[i] && in_ready[i] && !may[i]) assert (may == '0);
    end
    // While inputs 0 and 1 both wait, their lines are as their weights, within two rounds and the three lines of each: `ahead` is
    // given[0] x quanta[1] - given[1] x quanta[0], and is what each has less credit now than when both began to wait.
    logic signed [WAITS+3:0] ahead, began_0, began_1, now_0, now_1, quantum_0, quantum_1;
    assign now_0 = (WAITS + 4)'($signed(left[0]));
    assign now_1 = (WAITS + 4)'($signed(left[1]));
    assign quantum_0 = $signed((WAITS + 4)'(quanta[0]));
    assign quantum_1 = $signed((WAITS + 4)'(quanta[1]));
    wire both = in_valid[0] && in_valid[1];
    logic waited_both;
    always_ff @(posedge clk)
        if (reset || !(both || bursting)) begin
            waited_both <= 1'b0;
            ahead       <= '0;
        end else if (!bursting) begin
            if (!waited_both) begin
                began_0 <= now_0;
                began_1 <= now_1;
            end
            waited_both <= 1'b1;
            ahead <= (waited_both ? ahead : (WAITS + 4)'(0))
                + (in_ready[0] ? $signed((WAITS + 4)'(f_given)) * quantum_1 : in_ready[1] ? -$signed((WAITS + 4)'(f_given)) * quantum_0 : (WAITS + 4)'(0));
        end
    always_comb
        if (f_started && waited_both) begin
            assert (began_0 <= quantum_0 && began_0 >= -3 && began_1 <= quantum_1 && began_1 >= -3);
            assert (ahead == (began_0 - now_0) * quantum_1 - (began_1 - now_1) * quantum_0);
            assert (ahead <= 2 * quantum_0 * quantum_1 + 3 * (quantum_0 + quantum_1));
            assert (-ahead <= 2 * quantum_0 * quantum_1 + 3 * (quantum_0 + quantum_1));
        end
    for (genvar i = 0; i < INPUTS; i++) begin : bound
        logic signed [WAITS+1:0] others, credits, waited, spent;
        wire empty = left[i][WAITS+1] || left[i] == '0;
        always_comb begin
            others = '0;
            credits = '0;
            waited = $signed({2'b0, f_waited[i]});
            for (int j = 0; j < INPUTS; j++)
                if (j != i) begin
                    others = others + $signed({2'b0, quanta[j]});
                    credits = credits + $signed(left[j]);
                end
            spent = others;
            if (!empty) spent = '0;
            if (f_started && in_valid[i]) begin
                assert (waited <= 2 * others + (WAITS + 2)'(3 * (INPUTS - 1)));
                if (f_waited[i] != '0) assert (waited + credits + spent <= 2 * others);
            end
        end
    end
end

wire f_cover_burst = f_started && out_valid && out_ready && f_open && out_last;
wire f_cover_full = f_started && f_spare_valid && !out_ready;
wire f_cover_waited = f_started && f_waited[0] == WAITS'(INPUTS - 1) && in_valid[0] && in_ready[0];

`include "reach.svh"
