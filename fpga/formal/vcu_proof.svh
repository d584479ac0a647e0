// Proof of the VCU's page: a write changes what its address says and nothing else, one that is not accepted changes nothing, and a
// read shows what it should.
`include "started.svh"

wire f_write = select && write && lanes == 2'b11;
// A write of register `index` of a port.
function automatic logic f_to(logic is_write, logic [11:0] to, int port, int index);
    return is_write && to[11:3] == 9'(12'h100 / 8 + port * 16 + index);
endfunction
always_comb assume (address[2:0] == 3'd0);

logic f_twice = 1'b0;
always_ff @(posedge clk) f_twice <= f_started;
logic f_wrote, f_refused, f_accepted, f_outside;
logic [11:0] f_at;
logic [63:0] f_data;
logic [31:0] f_count;
logic [PORTS-1:0] f_enable, f_bits, f_running;
logic [PORTS-1:0][ADDRESS-1:0] f_offset, f_first, f_last;
logic [PORTS-1:0][3:0] f_weight;
logic [PORTS-1:0][10:0] f_rate;
logic [PORTS-1:0][47:0] f_cycles;
wire [PORTS-1:0][47:0] f_cycles_now = {of_port[1].registers.cycles, of_port[0].registers.cycles};
always_ff @(posedge clk) begin
    {f_wrote, f_outside, f_at, f_data} <= {f_write, outside, address, data};
    {f_refused, f_accepted} <= {select && write && !accepted, select && write && accepted};
    {f_enable, f_bits, f_running, f_count, f_cycles} <= {enable, reset_bits, running, outside_count, f_cycles_now};
    {f_offset, f_first, f_last, f_weight, f_rate} <= {offset, first, last, weight, rate};
end
always_comb
    if (f_twice) begin
        if (f_wrote && f_at == 12'h020) assert (reset_bits == f_data[PORTS-1:0]);
        else assert (reset_bits == f_bits);
        if (f_wrote && f_at == 12'h040) assert (outside_count == '0);
        else assert (outside_count == f_count + 32'(f_outside && f_count != '1));
        for (int i = 0; i < PORTS; i++) begin
            if (offset[i] != f_offset[i]) assert (f_to(f_wrote, f_at, i, 0) && offset[i] == f_data[ADDRESS-1:0]);
            if (first[i] != f_first[i]) assert (f_to(f_wrote, f_at, i, 1) && first[i] == f_data[ADDRESS-1:0]);
            if (last[i] != f_last[i]) assert (f_to(f_wrote, f_at, i, 2) && last[i] == f_data[ADDRESS-1:0]);
            if (enable[i] != f_enable[i]) assert (f_to(f_wrote, f_at, i, 3) && enable[i] == f_data[0]);
            if (f_to(f_wrote, f_at, i, 4)) assert (weight[i] == (f_data[3:0] == '0 ? 4'd1 : f_data[3:0]));
            else assert (weight[i] == f_weight[i]);
            if (f_to(f_wrote, f_at, i, 5)) assert (rate[i] == (f_data > 64'd2047 ? 11'd0 : f_data[10:0]));
            else assert (rate[i] == f_rate[i]);
            assert (f_cycles_now[i] == f_cycles[i] + 48'(f_running[i]));
        end
        for (int i = 0; i < PORTS; i++)
            if (f_accepted) begin
                if (f_to(1'b1, f_at, i, 0)) assert (offset[i] == f_data[ADDRESS-1:0]);
                if (f_to(1'b1, f_at, i, 1)) assert (first[i] == f_data[ADDRESS-1:0]);
                if (f_to(1'b1, f_at, i, 2)) assert (last[i] == f_data[ADDRESS-1:0]);
                if (f_to(1'b1, f_at, i, 3)) assert (enable[i] == f_data[0]);
                for (int index = 6; index < 16; index++) assert (!f_to(1'b1, f_at, i, index));
            end
        if (f_accepted && f_at < 12'h100) assert (f_at == 12'h020 || f_at == 12'h038 || f_at == 12'h040);
        if (f_refused)
            assert ({enable, reset_bits, offset, first, last, weight, rate} == {f_enable, f_bits, f_offset, f_first, f_last, f_weight, f_rate});
    end

// A record is cleared by a 1 in its own bit of FAULTS.
always_comb
    for (int i = 0; i < PORTS; i++) assert (fault_clear[i] == (f_write && address == 12'h038 && data[i]));

always_comb
    if (f_started) begin
        if (address == 12'h018) assert (value == {32'b0, 8'(SLICE), 8'(PORTS), line_pkg::MONITOR_VERSION});
        if (address == 12'h020) assert (value == 64'(hold));
        if (address == 12'h028) assert (value == 64'(drained));
        if (address == 12'h030) assert (value == 64'(running));
        if (address == 12'h038) assert (value == 64'(fault_valid | silent));
        if (address == 12'h040) assert (value == 64'(outside_count));
        if (address == 12'h048) assert (value == 64'(silent));
        for (int i = 0; i < PORTS; i++) begin
            if (f_to(1'b1, address, i, 0)) assert (value == 64'(offset[i]));
            if (f_to(1'b1, address, i, 1)) assert (value == 64'(first[i]));
            if (f_to(1'b1, address, i, 2)) assert (value == 64'(last[i]));
            if (f_to(1'b1, address, i, 3)) assert (value == 64'(enable[i]));
            if (f_to(1'b1, address, i, 6))
                assert (value == {fault_valid[i], 53'b0, fault_lines[i], 3'b0, fault_write[i], fault_kind[i]});
            if (f_to(1'b1, address, i, 7)) assert (value == 64'(fault_address[i]));
        end
        if (address >= 12'h100 + 12'(PORTS * 'h80)) assert (value == '0 && !accepted);
        if (lanes != 2'b11) assert (!accepted);
    end

wire f_cover_slice = f_twice && offset[1] != f_offset[1];
wire f_cover_refused = f_twice && f_refused && f_at >= 12'h100;

`include "reach.svh"
