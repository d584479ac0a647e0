// The guarantee of port_registers to an auditor (proved there): a slice changes only after a cycle in which the port was in reset
// and drained, and a port leaves reset only after such a cycle.
logic f_enable, f_hold, f_quiet;
logic [ADDRESS-1:0] f_offset, f_first, f_last;
logic [PORT-1:0] f_port;
always_ff @(posedge clk) begin
    f_enable <= enable;
    f_offset <= offset;
    f_first  <= first;
    f_last   <= last;
    f_hold   <= hold;
    f_quiet  <= hold && idle;
    f_port   <= port;
end
always_comb
    if (f_started) begin
        assume (port == f_port);
        if (!f_quiet) begin
            assume (enable == f_enable && offset == f_offset && first == f_first && last == f_last);
            if (f_hold) assume (hold);
        end
    end else assume (hold);

function automatic logic f_fits(logic [ADDRESS-1:0] address, logic [1:0] lines);
    return enable && lines != 2'd2 && (address[1:0] & lines) == 2'd0 && address >= first && {1'b0, address} + (ADDRESS + 1)'(lines) <= {1'b0, last};
endfunction
