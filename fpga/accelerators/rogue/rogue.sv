// A test's accelerator: requests of every shape at random addresses of the whole 48-bit space, with every tag, broken bursts,
// fences and interrupts, from the cycle in which it leaves reset. It says that it runs and ignores every command. Reads of its
// register 0xff8 are never answered.
module rogue (
`include "accelerator_ports.svh"
);
    logic [63:0] a, b;
    logic [7:0]  tag;

    // Two xorshift generators.
    function automatic logic [63:0] step(logic [63:0] x);
        x = x ^ (x << 13);
        x = x ^ (x >> 7);
        return x ^ (x << 17);
    endfunction

    assign running = !reset;
    assign active = !reset;
    assign rd_valid = !reset && a[60];
    assign rd_address = a[41:0];
    assign rd_lines = a[51:50];
    assign rd_tag = tag;
    assign wr_valid = !reset && b[60];
    assign wr_address = b[41:0];
    assign wr_first = b[52];
    assign wr_fence = b[57:53] == '0;
    assign wr_lines = b[51:50];
    assign wr_tag = ~tag;
    assign wr_data = {8{a}};
    assign irq = !reset && a[63:58] == '0;
    assign vector = a[57:56];

    always_ff @(posedge clk) begin
        if (reset) begin
            a   <= 64'h9e37_79b9_7f4a_7c15;
            b   <= 64'hd1b5_4a32_d192_ed03;
            tag <= '0;
        end else begin
            a   <= step(a);
            b   <= step(b);
            tag <= tag + 8'd1;
        end
        answers <= select && !reset && address != 12'hff8;
        case (address)
            12'h000: value <= 64'h1000_0100_0000_0000;
            12'h008: value <= 64'h9d1b_2f4f_0c11_00fe;
            12'h010: value <= 64'h726f_6775_4a5e_4f0a;
            12'h018: value <= 64'(line_pkg::JOB_RUNNING);
            default: value <= '1;
        endcase
    end
endmodule
