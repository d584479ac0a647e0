// The pass-through build's substitute for auditor and tree: one accelerator at the AXI edge, without translation or check.
module pass_through #(
    parameter int ADDRESS = line_pkg::ADDRESS,
    parameter int TAG     = line_pkg::TAG,
    parameter int DATA    = line_pkg::DATA,
    parameter int PORT    = line_pkg::PORT,
    localparam int ID     = PORT + TAG
) (
    input  logic               clk,
    input  logic               reset,
    input  logic               hold,
    output logic               drained,
    input  logic               rd_valid,
    output logic               rd_ready,
    input  logic [ADDRESS-1:0] rd_address,
    input  logic [1:0]         rd_lines,
    input  logic [TAG-1:0]     rd_tag,
    output logic               rsp_valid,
    output logic [TAG-1:0]     rsp_tag,
    output logic [1:0]         rsp_line,
    output logic               rsp_error,
    output logic [DATA-1:0]    rsp_data,
    input  logic               wr_valid,
    output logic               wr_ready,
    input  logic               wr_first,
    input  logic               wr_fence,
    input  logic [ADDRESS-1:0] wr_address,
    input  logic [1:0]         wr_lines,
    input  logic [TAG-1:0]     wr_tag,
    input  logic [DATA-1:0]    wr_data,
    output logic               done_valid,
    output logic [TAG-1:0]     done_tag,
    output logic               done_error,

    output logic               read_valid,
    input  logic               read_ready,
    output logic [ID+2+ADDRESS-1:0] read_item,
    output logic               write_valid,
    input  logic               write_ready,
    output logic               write_last,
    output logic [ID+2+ADDRESS+1+DATA-1:0] write_item,
    input  logic               r_valid,
    input  logic [ID-1:0]      r_id,
    input  logic [1:0]         r_line,
    input  logic               r_last,
    input  logic               r_error,
    input  logic [DATA-1:0]    r_data,
    input  logic               b_valid,
    input  logic [ID-1:0]      b_id,
    input  logic               b_error
);
    logic [15:0] reads, writes;
    // Beats of the write burst that are still to come.
    logic [1:0]  left;
    logic        fence_answers;

    assign read_valid = rd_valid && !hold;
    assign rd_ready = read_ready && !hold;
    assign read_item = {PORT'(0), rd_tag, rd_lines, rd_address};
    assign write_valid = wr_valid && !hold && !wr_fence;
    assign fence_answers = wr_valid && wr_fence && !hold && writes == '0 && !b_valid;
    assign wr_ready = !hold && (wr_fence ? fence_answers : write_ready);
    assign write_last = left == 2'd1 || (left == 2'd0 && wr_lines == 2'd0);
    assign write_item = {PORT'(0), wr_tag, wr_lines, wr_address, wr_first, wr_data};

    assign rsp_valid = r_valid && !hold;
    assign rsp_tag = r_id[TAG-1:0];
    assign rsp_line = r_line;
    assign rsp_error = r_error;
    assign rsp_data = r_data;
    assign done_valid = !hold && (b_valid || fence_answers);
    assign done_tag = b_valid ? b_id[TAG-1:0] : wr_tag;
    assign done_error = b_valid && b_error;
    assign drained = reads == '0 && writes == '0;

    always_ff @(posedge clk)
        if (reset) begin
            reads  <= '0;
            writes <= '0;
            left   <= '0;
        end else begin
            reads  <= reads + 16'(read_valid && read_ready) - 16'(r_valid && r_last);
            writes <= writes + 16'(write_valid && write_ready && wr_first) - 16'(b_valid);
            if (write_valid && write_ready) left <= (left == 2'd0) ? wr_lines : left - 2'd1;
        end
endmodule
