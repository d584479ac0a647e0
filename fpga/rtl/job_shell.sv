// The part that all preemptible accelerators share: the registers of the preemption interface, the job's states, and draining,
// saving and loading. The kernel behind it has a state vector of STATE bits and issues requests only while `k_run`.
//
// To save: no new request passes, the shell waits until every request is answered and the kernel has taken the answers, and
// writes `k_state` to STATE_ADDRESS. To load: it reads the lines and hands them to the kernel with `k_load`.
module job_shell #(
    parameter logic [127:0] GUID = 128'h0,
    parameter int STATE = 64
) (
`include "accelerator_ports.svh"
    ,
    // One cycle at the beginning of a job: the kernel takes its registers. `k_load` instead when a job is resumed.
    output logic             k_start,
    output logic             k_load,
    output logic [STATE-1:0] k_loaded,
    output logic             k_run,
    input  logic [STATE-1:0] k_state,
    // The job's last answer was taken; read while `k_run`.
    input  logic             k_finished,
    // Registers from 0x30 on; a read is answered in the same cycle.
    output logic             k_select,
    input  logic [63:0]      k_value,
    input  logic             k_rd_valid,
    output logic             k_rd_ready,
    input  logic [line_pkg::ADDRESS-1:0] k_rd_address,
    input  logic [1:0]       k_rd_lines,
    input  logic [line_pkg::TAG-1:0] k_rd_tag,
    output logic             k_rsp_valid,
    input  logic             k_wr_valid,
    output logic             k_wr_ready,
    input  logic             k_wr_first,
    input  logic             k_wr_fence,
    input  logic [line_pkg::ADDRESS-1:0] k_wr_address,
    input  logic [1:0]       k_wr_lines,
    input  logic [line_pkg::TAG-1:0] k_wr_tag,
    input  logic [line_pkg::DATA-1:0] k_wr_data,
    output logic             k_done_valid
);
    import line_pkg::*;
    localparam int LINES = (STATE + DATA - 1) / DATA;
    localparam int INDEX = LINES > 1 ? $clog2(LINES) : 1;
    // An AFU's device feature header: type 1, end of list.
    localparam logic [63:0] HEADER = 64'h1000_0100_0000_0000;
    // Cycles that a kernel has to take its last answer before its state is read.
    localparam logic [2:0] SETTLE = 3'd4;

    job_t             job;
    logic [63:0]      state_address;
    logic [11:0]      reads, writes;
    logic             in_burst, failed, quiet;
    logic [1:0]       burst_left;
    logic [2:0]       settled;
    // Lines of the state that were issued, and that were answered.
    logic [INDEX:0]   issued, answered;
    logic [LINES*DATA-1:0] image, loaded;
    logic             command;
    logic             s_rd_valid, s_wr_valid;

    assign command = select && write && address == 12'h018 && lanes[0];
    assign running = job == JOB_RUNNING;
    assign active = job == JOB_RUNNING || job == JOB_SAVING || job == JOB_LOADING;
    assign k_run = running && !failed;
    assign k_select = select && address >= 12'h030;
    assign quiet = reads == '0 && writes == '0 && !in_burst;
    assign image = (LINES * DATA)'(k_state);
    assign k_loaded = loaded[STATE-1:0];

    // Requests: the kernel's while it runs (a burst is finished in any case), the shell's own while it saves or loads.
    assign s_rd_valid = job == JOB_LOADING && issued != (INDEX + 1)'(LINES);
    assign s_wr_valid = job == JOB_SAVING && settled == SETTLE && issued != (INDEX + 1)'(LINES);
    assign rd_valid = s_rd_valid || (k_run && k_rd_valid);
    assign k_rd_ready = rd_ready && k_run;
    assign rd_address = s_rd_valid ? state_address[47:6] + ADDRESS'(issued) : k_rd_address;
    assign rd_lines = s_rd_valid ? 2'd0 : k_rd_lines;
    assign rd_tag = s_rd_valid ? TAG'(issued) : k_rd_tag;
    assign wr_valid = s_wr_valid || ((k_run || in_burst) && k_wr_valid);
    assign k_wr_ready = wr_ready && (k_run || in_burst);
    assign wr_first = s_wr_valid || k_wr_first;
    assign wr_fence = !s_wr_valid && k_wr_fence;
    assign wr_address = s_wr_valid ? state_address[47:6] + ADDRESS'(issued) : k_wr_address;
    assign wr_lines = s_wr_valid ? 2'd0 : k_wr_lines;
    assign wr_tag = s_wr_valid ? TAG'(issued) : k_wr_tag;
    assign wr_data = s_wr_valid ? image[DATA*issued[INDEX-1:0]+:DATA] : k_wr_data;
    // Answers that are late because a job failed or is being paused are still the kernel's.
    assign k_rsp_valid = rsp_valid && (job == JOB_RUNNING || job == JOB_SAVING);
    assign k_done_valid = done_valid && (job == JOB_RUNNING || (job == JOB_SAVING && settled != SETTLE));

    always_ff @(posedge clk) begin
        k_start   <= 1'b0;
        k_load    <= 1'b0;
        irq <= 1'b0;
        vector    <= 2'd0;
        if (rsp_valid && job == JOB_LOADING) loaded[DATA*rsp_tag[INDEX-1:0]+:DATA] <= rsp_data;

        if (reset) begin
            job        <= JOB_IDLE;
            reads      <= '0;
            writes     <= '0;
            in_burst   <= 1'b0;
            burst_left <= '0;
            failed     <= 1'b0;
            settled    <= '0;
            issued     <= '0;
            answered   <= '0;
        end else begin
            reads <= reads + ((rd_valid && rd_ready) ? 12'(rd_lines) + 12'd1 : 12'd0) - 12'(rsp_valid);
            writes <= writes + 12'(wr_valid && wr_ready && (wr_fence || wr_first)) - 12'(done_valid);
            if (wr_valid && wr_ready && !wr_fence) begin
                burst_left <= in_burst ? burst_left - 2'd1 : wr_lines;
                in_burst   <= in_burst ? burst_left != 2'd1 : wr_lines != 2'd0;
            end
            if ((rsp_valid && rsp_error) || (done_valid && done_error)) failed <= 1'b1;
            settled <= !quiet ? 3'd0 : settled == SETTLE ? SETTLE : settled + 3'd1;

            case (job)
                JOB_RUNNING:
                    if (failed) begin
                        if (quiet) begin
                            job <= JOB_ERROR;
                            irq <= 1'b1;
                        end
                    end else if (k_finished && quiet && settled == SETTLE) begin
                        job <= JOB_DONE;
                        irq <= 1'b1;
                    end
                JOB_SAVING: begin
                    // Its own lines count as under way, too: `settled` holds from the first one on.
                    if (settled == SETTLE || issued != '0) settled <= SETTLE;
                    if (wr_valid && wr_ready && s_wr_valid) issued <= issued + 1'b1;
                    if (done_valid && issued != '0) answered <= answered + 1'b1;
                    if (failed && quiet) job <= JOB_ERROR;
                    else if (answered == (INDEX + 1)'(LINES)) job <= JOB_SAVED;
                end
                JOB_LOADING: begin
                    if (rd_valid && rd_ready) issued <= issued + 1'b1;
                    if (rsp_valid) answered <= answered + 1'b1;
                    if (failed && quiet) job <= JOB_ERROR;
                    else if (answered == (INDEX + 1)'(LINES)) begin
                        job    <= JOB_RUNNING;
                        k_load <= 1'b1;
                        settled <= '0;
                    end
                end
                default: ;
            endcase

            if (command)
                case (data[2:0])
                    COMMAND_START:
                        if (!active) begin
                            job     <= JOB_RUNNING;
                            failed  <= 1'b0;
                            settled <= '0;
                            k_start <= 1'b1;
                        end
                    COMMAND_PAUSE:
                        if (job == JOB_RUNNING && !failed) begin
                            job      <= JOB_SAVING;
                            settled  <= '0;
                            issued   <= '0;
                            answered <= '0;
                        end
                    COMMAND_RESUME:
                        if (!active) begin
                            job      <= JOB_LOADING;
                            failed   <= 1'b0;
                            issued   <= '0;
                            answered <= '0;
                        end
                    default: ;
                endcase
        end
    end

    always_ff @(posedge clk) begin
        answers <= select && !reset;
        case (address)
            12'h000: value <= HEADER;
            12'h008: value <= GUID[63:0];
            12'h010: value <= GUID[127:64];
            12'h018: value <= 64'(job);
            12'h020: value <= 64'(LINES);
            12'h028: value <= state_address;
            default: value <= (address >= 12'h030) ? k_value : '0;
        endcase
        if (reset) state_address <= '0;
        else if (select && write && address == 12'h028) begin
            if (lanes[0]) state_address[31:0] <= data[31:0];
            if (lanes[1]) state_address[63:32] <= data[63:32];
        end
    end
endmodule
