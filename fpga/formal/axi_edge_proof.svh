// Proof (g) of the edge: AXI's addresses and data are the requests that entered, in order, and stay until they are taken; the
// k-th burst of data belongs to the k-th address; responses keep their ids, and lines are numbered by id.
`include "started.svh"

// Bursts enter as a tree lets them out (proofs `writes` and `tree`): a first item, then the rest, the last one marked.
logic [1:0] f_beat, f_lines;
always_ff @(posedge clk)
    if (reset) f_beat <= '0;
    else if (write_valid && write_ready) begin
        f_beat <= write_last ? 2'd0 : f_beat + 2'd1;
        if (write_first) f_lines <= write_lines;
    end
wire [1:0] f_lines_now = write_first ? write_lines : f_lines;
always_comb
    if (write_valid) begin
        assume (write_first == (f_beat == 2'd0));
        assume (write_last == (f_beat == f_lines_now));
        if (write_first) assume (write_lines != 2'd2);
    end

// What entered, by the number of the burst or of the item, and how much left.
logic [3:0][ID+2+ADDRESS-1:0] f_reads, f_writes;
logic [3:0][DATA+4-1:0] f_items;
logic [1:0] f_read_in, f_read_out, f_write_in, f_write_out, f_item_in, f_item_out;
// Burst and beat of the next item of data that leaves.
logic [1:0] f_data_burst, f_data_beat;
always_ff @(posedge clk)
    if (reset) begin
        {f_read_in, f_read_out, f_write_in, f_write_out, f_item_in, f_item_out, f_data_burst, f_data_beat} <= '0;
    end else begin
        if (read_valid && read_ready) begin
            f_reads[f_read_in] <= {read_id, read_lines, read_address};
            f_read_in <= f_read_in + 2'd1;
        end
        if (arvalid && arready) f_read_out <= f_read_out + 2'd1;
        if (write_valid && write_ready) begin
            if (write_first) begin
                f_writes[f_write_in] <= {write_id, write_lines, write_address};
                f_write_in <= f_write_in + 2'd1;
            end
            // An item with the number of its burst and its own within it.
            f_items[f_item_in] <= {write_first ? f_write_in : f_write_in - 2'd1, f_beat, write_data};
            f_item_in <= f_item_in + 2'd1;
        end
        if (awvalid && awready) f_write_out <= f_write_out + 2'd1;
        if (wvalid && wready) begin
            f_item_out <= f_item_out + 2'd1;
            f_data_beat <= wlast ? 2'd0 : f_data_beat + 2'd1;
            if (wlast) f_data_burst <= f_data_burst + 2'd1;
        end
    end

always_comb
    if (f_started) begin
        // Nothing is lost, duplicated or invented.
        assert (2'(f_read_in - f_read_out) == 2'(arvalid));
        assert (2'(f_write_in - f_write_out) == 2'(awvalid));
        assert (2'(f_item_in - f_item_out) == 2'(wvalid));
        // The k-th address is the k-th request.
        if (arvalid) assert ({arid, arlen[1:0], araddr[6+:ADDRESS]} == f_reads[f_read_out]);
        if (awvalid) assert ({awid, awlen[1:0], awaddr[6+:ADDRESS]} == f_writes[f_write_out]);
        assert (!arvalid || (arlen[7:2] == '0 && araddr[63:6+ADDRESS] == '0 && araddr[5:0] == '0));
        assert (!awvalid || (awlen[7:2] == '0 && awaddr[63:6+ADDRESS] == '0 && awaddr[5:0] == '0));
        // The k-th burst of data is that of the k-th address, beat by beat, and ends where that one's length says.
        if (wvalid) begin
            assert ({f_data_burst, f_data_beat, wdata} == f_items[f_item_out]);
            assert (wlast == (f_data_beat == f_writes[f_data_burst][ADDRESS+:2]));
            assert (f_data_beat <= f_writes[f_data_burst][ADDRESS+:2] && f_writes[f_data_burst][ADDRESS+:2] != 2'd2);
        end
        // Where the next item that enters, or the one that waits, is in its burst.
        assert (2'(f_write_in - f_data_burst) == 2'(wvalid || f_beat != '0));
        if (wvalid) assert (f_beat == (wlast ? 2'd0 : f_data_beat + 2'd1));
        else assert (f_beat == f_data_beat);
        if (f_beat != '0) assert (f_beat <= f_lines && f_lines != 2'd2 && f_lines == f_writes[2'(f_write_in - 2'd1)][ADDRESS+:2]);
        // What can leave is not kept waiting.
        if (!arvalid || arready) assert (read_ready);
        if ((!awvalid || awready) && (!wvalid || wready)) assert (write_ready);
    end

// What is not taken stays.
logic f_ar_waits, f_aw_waits, f_w_waits;
logic [ID+64+8-1:0] f_ar, f_aw;
logic [DATA:0] f_w;
always_ff @(posedge clk) begin
    f_ar_waits <= arvalid && !arready && !reset;
    f_aw_waits <= awvalid && !awready && !reset;
    f_w_waits  <= wvalid && !wready && !reset;
    f_ar <= {arid, araddr, arlen};
    f_aw <= {awid, awaddr, awlen};
    f_w  <= {wdata, wlast};
end
always_comb
    if (f_started) begin
        if (f_ar_waits) assert (arvalid && {arid, araddr, arlen} == f_ar);
        if (f_aw_waits) assert (awvalid && {awid, awaddr, awlen} == f_aw);
        if (f_w_waits) assert (wvalid && {wdata, wlast} == f_w);
    end

// Responses: in the next cycle, with their id, and the number of the line within the id's burst.
logic f_r, f_b;
logic [ID-1:0] f_rid, f_bid;
logic f_rlast, f_rerror, f_berror;
logic [DATA-1:0] f_rdata;
logic [1:0] f_line;
logic [2**ID-1:0][1:0] f_next = '0;
always_ff @(posedge clk) begin
    f_r <= rvalid && !reset;
    f_b <= bvalid && !reset;
    {f_rid, f_rlast, f_rerror, f_rdata} <= {rid, rlast, rresp[1], rdata};
    {f_bid, f_berror} <= {bid, bresp[1]};
    f_line <= f_next[rid];
    if (rvalid) f_next[rid] <= rlast ? 2'd0 : f_next[rid] + 2'd1;
end
always_comb begin
    for (int i = 0; i < 2 ** ID; i++) assert (next_line[i] == f_next[i]);
    if (f_started) begin
        assert (r_valid == f_r && b_valid == f_b);
        if (r_valid) assert ({r_id, r_last, r_error, r_data, r_line} == {f_rid, f_rlast, f_rerror, f_rdata, f_line});
        if (b_valid) assert ({b_id, b_error} == {f_bid, f_berror});
    end
end

wire f_cover_burst = f_started && wvalid && wready && wlast && f_data_beat == 2'd3;
wire f_cover_ahead = f_started && awvalid && f_write_in - f_data_burst == '0 && !wvalid;
wire f_cover_interleaved = f_started && r_valid && r_line == 2'd1 && f_next != '0 && rvalid && rid != r_id && f_next[rid] == 2'd2;

`include "reach.svh"
