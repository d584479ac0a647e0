// Proof (f): no request at the AXI4 manager lies outside the slice of the port in its id, in the whole monitor with two ports
// whose accelerators do anything, with MMIO writes of any kind at any time.
`include "started.svh"

function automatic logic f_fits(logic port, logic [ADDRESS-1:0] address, logic [1:0] lines);
    return enable[port] && lines != 2'd2 && address >= first[port]
        && {1'b0, address} + (ADDRESS + 1)'(lines) <= {1'b0, last[port]};
endfunction

// The world outside answers only what it got.
logic [1:0][4:0] f_reads, f_writes;
logic [1:0] f_address_waits;
always_comb for (int p = 0; p < 2; p++) f_address_waits[p] = awvalid && awid[TAG] == 1'(p);
always_ff @(posedge clk)
    for (int p = 0; p < 2; p++)
        if (reset) begin
            f_reads[p]  <= '0;
            f_writes[p] <= '0;
        end else begin
            f_reads[p] <= f_reads[p] + 5'(arvalid && arready && arid[TAG] == 1'(p)) - 5'(rvalid && rlast && rid[TAG] == 1'(p));
            // Bursts whose first beat reached the edge.
            f_writes[p] <= f_writes[p]
                + 5'(write_valid && write_ready && write_item[DATA] && write_item[WRITE_ITEM-1-PORT+1] == 1'(p))
                - 5'(bvalid && bid[TAG] == 1'(p));
        end
always_comb begin
    if (rvalid) assume (f_reads[rid[TAG]] != '0);
    if (bvalid) assume (f_writes[bid[TAG]] > 5'(f_address_waits[bid[TAG]]));
end

// The claim.
always_comb
    if (f_started) begin
        if (arvalid) assert (f_fits(arid[TAG], araddr[6+:ADDRESS], arlen[1:0]) && araddr[63:6+ADDRESS] == '0 && araddr[5:0] == '0);
        if (awvalid) assert (f_fits(awid[TAG], awaddr[6+:ADDRESS], awlen[1:0]) && awaddr[63:6+ADDRESS] == '0 && awaddr[5:0] == '0);
    end

// Invariants for the induction: each request on its way fits, and each auditor's count is that of its requests on their way.
wire f_rt_spare = guarded.read_tree.at[0].node_of[0].mux.out_stage.spare_valid;
wire [READ_ITEM+2:0] f_rt_item = guarded.read_tree.at[0].node_of[0].mux.out_stage.spare;
wire f_wt_spare = guarded.write_tree.at[0].node_of[0].mux.out_stage.spare_valid;
wire [WRITE_ITEM+2:0] f_wt_item = guarded.write_tree.at[0].node_of[0].mux.out_stage.spare;

function automatic logic f_read_fits(logic [READ_ITEM-1:0] item);
    return f_fits(item[READ_ITEM-1], item[ADDRESS-1:0], item[ADDRESS+:2]);
endfunction
function automatic logic f_write_fits(logic [WRITE_ITEM-1:0] item);
    return !item[DATA] || f_fits(item[WRITE_ITEM-1], item[DATA+1+:ADDRESS], item[DATA+1+ADDRESS+:2]);
endfunction

always_comb
    if (f_started) begin
        if (read_valid) assert (f_read_fits(read_item));
        if (f_rt_spare) assert (read_valid && f_read_fits(f_rt_item[READ_ITEM-1:0]));
        if (write_valid) assert (f_write_fits(write_item));
        if (f_wt_spare) assert (write_valid && f_write_fits(f_wt_item[WRITE_ITEM-1:0]));
    end

for (genvar p = 0; p < 2; p++) begin : f_port
    localparam int HEAD = TAG + 2 + ADDRESS + 2;
    wire out_valid = guarded.reads_valid[p];
    wire spare_valid = guarded.of_port[p].guard.reads.out_stage.spare_valid;
    wire [READ_ITEM-1:0] spare = guarded.of_port[p].guard.reads.out_stage.spare;
    wire [1:0] reads_underway = guarded.of_port[p].guard.reads.underway;
    wire [1:0] writes_underway = guarded.of_port[p].guard.writes.underway;
    wire [3:0] put = guarded.of_port[p].guard.writes.put;
    wire [3:0] get = guarded.of_port[p].guard.writes.get;
    wire [3:0] complete = guarded.of_port[p].guard.writes.complete;
    wire [1:0] left = guarded.of_port[p].guard.writes.left;
    wire dropping = guarded.of_port[p].guard.writes.dropping;
    wire [3:0] used = put - get;
    wire [3:0] whole = complete - get;
    logic [3:0] bursts;
    always_comb begin
        bursts = '0;
        for (int i = 0; i < 8; i++) begin
            automatic logic [2:0] place = get[2:0] + 3'(i);
            automatic logic [HEAD+DATA-1:0] beat = guarded.of_port[p].guard.writes.buffer[place];
            if (4'(i) < used && beat[DATA+1] && f_started)
                assert (f_fits(1'(p), beat[DATA+2+:ADDRESS], beat[DATA+2+ADDRESS+:2]));
            if (4'(i) < whole && beat[DATA+1]) bursts = bursts + 4'd1;
            // A burst in the making has one first beat, the first one behind the complete ones.
            if (f_started && 4'(i) < used && 4'(i) >= whole) assert (beat[DATA+1] == (4'(i) == whole));
        end
        if (f_started) begin
            assert (used <= 4'd8 && whole <= used);
            assert ((used > whole) == (left != '0 && !dropping));
            if (used > whole) assert ({1'b0, used} + 5'(left) <= 5'd8 && writes_underway < 2'd2);
        end
    end
    always_comb
        if (f_started) begin
            if (out_valid) assert (f_read_fits(guarded.reads_item[p]) && guarded.reads_item[p][READ_ITEM-1] == 1'(p));
            if (spare_valid) assert (out_valid && f_read_fits(spare) && spare[READ_ITEM-1] == 1'(p));
            assert (5'(reads_underway) == f_reads[p] + 5'(out_valid) + 5'(spare_valid)
                + 5'(read_valid && read_item[READ_ITEM-1] == 1'(p))
                + 5'(f_rt_spare && f_rt_item[READ_ITEM-1] == 1'(p))
                + 5'(arvalid && arid[TAG] == 1'(p))
                + 5'(r_valid && r_last && r_id[TAG] == 1'(p))
                + 5'(guarded.rr_valid && guarded.rr_last && guarded.rr_id[TAG] == 1'(p)));
            assert (reads_underway <= 2'd2 && f_reads[p] <= 5'd2);
            assert (5'(writes_underway) == f_writes[p] + 5'(bursts)
                + 5'(write_valid && write_item[DATA] && write_item[WRITE_ITEM-1] == 1'(p))
                + 5'(f_wt_spare && f_wt_item[DATA] && f_wt_item[WRITE_ITEM-1] == 1'(p))
                + 5'(b_valid && b_id[TAG] == 1'(p))
                + 5'(guarded.bb_valid && guarded.bb_id[TAG] == 1'(p)));
            assert (writes_underway <= 2'd2 && f_writes[p] <= 5'd2 && f_writes[p] >= 5'(f_address_waits[p]));
        end
end

wire f_cover_read = f_started && arvalid && arid[TAG];
wire f_cover_write = f_started && awvalid && f_writes[1] != '0;

`include "reach.svh"
