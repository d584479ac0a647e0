// A test's accelerator: a job begins a write burst of four lines, stops in its middle and never ends; a pause is answered with
// "saving" for ever.
module stuck (
`include "accelerator_ports.svh"
);
    import line_pkg::*;
    job_t job;
    logic [63:0] target;
    logic [1:0] sent;

    plain_register #(.AT(12'h040)) target_register (.*, .value(target));

    assign running = job == JOB_RUNNING;
    assign active = job == JOB_RUNNING || job == JOB_SAVING;
    assign irq = 1'b0;
    assign vector = 2'd0;
    assign rd_valid = 1'b0;
    assign {rd_address, rd_lines, rd_tag} = '0;
    assign wr_valid = active && sent != 2'd2;
    assign wr_first = sent == 2'd0;
    assign wr_fence = 1'b0;
    assign wr_address = target[47:6];
    assign wr_lines = 2'd3;
    assign wr_tag = 8'd0;
    assign wr_data = '1;

    always_ff @(posedge clk) begin
        if (reset) begin
            job  <= JOB_IDLE;
            sent <= 2'd0;
        end else begin
            if (wr_valid && wr_ready) sent <= sent + 2'd1;
            if (select && write && address == 12'h018)
                case (data[2:0])
                    COMMAND_START, COMMAND_RESUME: job <= JOB_RUNNING;
                    COMMAND_PAUSE: job <= JOB_SAVING;
                    default: ;
                endcase
        end
        answers <= select && !reset;
        case (address)
            12'h000: value <= 64'h1000_0100_0000_0000;
            12'h008: value <= 64'h9d1b_2f4f_0c11_00ff;
            12'h010: value <= 64'h7374_7563_4a5e_4f0a;
            12'h018: value <= 64'(job);
            12'h020: value <= 64'd1;
            12'h040: value <= target;
            default: value <= '0;
        endcase
    end
endmodule
