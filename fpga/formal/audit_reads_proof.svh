// Proofs (a) and (b) for reads.
`include "started.svh"
`include "slice_environment.svh"

// Requests that left and are not answered, as the world outside counts them. It answers only what it got.
wire f_of_port = r_valid && r_port == port;
logic [COUNT+3:0] f_outstanding;
always_ff @(posedge clk)
    if (reset) f_outstanding <= '0;
    else f_outstanding <= f_outstanding + (COUNT + 4)'(out_valid && out_ready) - (COUNT + 4)'(f_of_port && r_last);
always_comb if (f_of_port) assume (f_outstanding != '0);

wire f_spare_valid = out_stage.spare_valid;
wire [PORT+TAG+2+ADDRESS-1:0] f_spare = out_stage.spare;

// (a) No request leaves outside the slice or with another port's number.
always_comb
    if (f_started) begin
        if (out_valid) assert (f_fits(out_address, out_lines) && out_port == port);
        if (f_spare_valid)
            assert (out_valid && f_fits(f_spare[ADDRESS-1:0], f_spare[ADDRESS+:2]) && f_spare[ADDRESS+2+TAG+:PORT] == port);
    end

// (b) The count of requests under way is exact, so `idle` is true only if nothing is; then no answer can come.
always_comb
    if (f_started) begin
        assert ((COUNT + 4)'(underway) == f_outstanding + (COUNT + 4)'(out_valid) + (COUNT + 4)'(f_spare_valid));
        assert (underway <= COUNT'(UNDERWAY) && f_outstanding <= (COUNT + 4)'(UNDERWAY));
        if (idle) assert (f_outstanding == '0 && !out_valid);
        // The next owner of the port begins with nothing under way.
        if (f_hold && !hold) assert (underway == '0 && !held);
    end

// (b) A response that passes is the port's own, of this owner, or the auditor's refusal, which carries no data.
logic f_mine, f_inject, f_error;
logic [TAG-1:0] f_tag;
logic [DATA-1:0] f_data;
always_ff @(posedge clk) begin
    f_mine   <= f_of_port && !hold && !reset;
    f_inject <= inject && !reset;
    f_tag    <= r_tag;
    f_data   <= r_data;
    f_error  <= r_error;
end
always_comb
    if (f_started && rsp_valid) begin
        assert (f_mine || f_inject);
        assert (!f_hold);
        if (f_mine) assert (rsp_tag == f_tag && rsp_data == f_data && rsp_error == f_error);
        else assert (rsp_error && rsp_data == '0);
    end

wire f_cover_leaves = f_started && out_valid && out_ready;
wire f_cover_full = f_started && underway == COUNT'(UNDERWAY);
wire f_cover_refused = f_started && refused && refused_fault == FAULT_ABOVE;
wire f_cover_answered = f_started && rsp_valid && !rsp_error;
wire f_cover_new_owner = f_started && f_hold && !hold && f_quiet && first != f_first;

// A state that must be reachable: the claim that it is not is refuted from reset.
`ifdef REACH
always_comb assert (!(`REACH));
`endif
