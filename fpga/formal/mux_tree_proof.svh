// Proof of a whole tree of four ports: nothing is lost, duplicated, invented or reordered, and each node weighs an input by the sum
// of the weights of all ports below it.
`include "started.svh"

// Items carry their port's number and a sequence number.
localparam int SEQUENCE = 4;
logic [PORTS-1:0][SEQUENCE-1:0] f_in, f_out;
always_comb
    for (int i = 0; i < PORTS; i++)
        if (in_valid[i]) assume (in_item[i] == {f_in[i], 2'(i)});
always_ff @(posedge clk)
    for (int i = 0; i < PORTS; i++)
        if (reset) begin
            f_in[i]  <= '0;
            f_out[i] <= '0;
        end else begin
            f_in[i]  <= f_in[i] + SEQUENCE'(in_valid[i] && in_ready[i]);
            f_out[i] <= f_out[i] + SEQUENCE'(out_valid && out_ready && out_item[1:0] == 2'(i));
        end

// Six places for items: output and spare of the two nodes below and of the node above. {last, lines, item}.
localparam int PLACE = WIDTH + 3;
wire [5:0] f_full;
wire [5:0][PLACE-1:0] f_place;
assign f_full = {
    at[0].node_of[1].mux.out_stage.spare_valid, valid[1][1], at[0].node_of[0].mux.out_stage.spare_valid, valid[1][0],
    at[1].node_of[0].mux.out_stage.spare_valid, out_valid
};
assign f_place = {
    at[0].node_of[1].mux.out_stage.spare, last[1][1], lines[1][1], item[1][1],
    at[0].node_of[0].mux.out_stage.spare, last[1][0], lines[1][0], item[1][0],
    at[1].node_of[0].mux.out_stage.spare, out_last, out_lines, out_item
};
function automatic logic f_of(logic [5:0] full, logic [5:0][PLACE-1:0] place, int where, int port);
    return full[where] && place[where][1:0] == 2'(port);
endfunction

always_comb
    if (f_started) begin
        for (int i = 0; i < PORTS; i++) begin
            // On its way an item is above, then on its own side below.
            automatic int side = i < 2 ? 2 : 4;
            automatic logic [SEQUENCE-1:0] number = f_out[i];
            for (int where = 0; where < 6; where++)
                if (where < 2 || where == side || where == side + 1) begin
                    if (f_of(f_full, f_place, where, i)) begin
                        assert (f_place[where][2+:SEQUENCE] == number);
                        number = number + 1'b1;
                    end
                end else assert (!f_of(f_full, f_place, where, i));
            assert (number == f_in[i]);
        end
        for (int where = 0; where < 6; where += 2) if (f_full[where+1]) assert (f_full[where]);
    end

// Bursts stay together: of each node, by the newest item that it holds or by what left it last.
logic [2:0] f_open;
logic [2:0][1:0] f_open_port;
wire [2:0] f_leaves = {valid[1][1] && ready[1][1], valid[1][0] && ready[1][0], out_valid && out_ready};
wire [2:0] f_bursting = {at[0].node_of[1].mux.bursting, at[0].node_of[0].mux.bursting, at[1].node_of[0].mux.bursting};
wire [2:0] f_owner = {at[0].node_of[1].mux.owner, at[0].node_of[0].mux.owner, at[1].node_of[0].mux.owner};
always_ff @(posedge clk)
    for (int node = 0; node < 3; node++)
        if (reset) f_open[node] <= 1'b0;
        else if (f_leaves[node]) begin
            f_open[node]      <= !f_place[2*node][PLACE-1];
            f_open_port[node] <= f_place[2*node][1:0];
        end
always_comb
    if (f_started)
        for (int node = 0; node < 3; node++) begin
            automatic logic open = f_open[node];
            automatic logic [1:0] port = f_open_port[node];
            for (int where = 2 * node; where < 2 * node + 2; where++)
                if (f_full[where]) begin
                    if (open) assert (f_place[where][1:0] == port);
                    open = !f_place[where][PLACE-1];
                    port = f_place[where][1:0];
                end
            assert (f_bursting[node] == open);
            if (open) assert (f_owner[node] == (node == 0 ? port[1] : port[0]));
            if (open && node != 0) assert (port[1] == (node == 2));
            // What is open above has left the node below, and the rest of it is there or has yet to arrive.
            if (node == 0) begin
                assert (open == (f_open[1] || f_open[2]) && !(f_open[1] && f_open[2]));
                if (open) assert (port[1] == f_open[2] && port == f_open_port[port[1] ? 2 : 1]);
            end
        end

// The sum of the weights of all ports below, one cycle later.
logic [PORTS-1:0][3:0] f_weight;
always_ff @(posedge clk) f_weight <= weight;
always_comb
    if (f_started)
        for (int node = 0; node < 2; node++) assert (sum[1][node] == 8'(f_weight[2*node]) + 8'(f_weight[2*node+1]));
wire f_cover_burst = f_started && out_valid && out_ready && out_last && f_open[0] && out_item[1:0] == 2'd3;
wire f_cover_full = f_started && f_full == '1;

`include "reach.svh"
