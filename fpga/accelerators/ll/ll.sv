// LL: walks a linked list, one line per node: the next node's address (0 ends the list) and a value that is summed. Bound by
// latency: one request is under way at a time.
module ll (
`include "accelerator_ports.svh"
);
    logic k_start, k_load, k_run, k_finished, k_select, k_rd_valid, k_rd_ready, k_rsp_valid, k_wr_ready, k_done_valid;
    logic [63:0] k_value, head, limit;
    logic [63:0] next, sum, visited;
    logic [191:0] k_loaded;
    logic waiting;

    job_shell #(.GUID(128'h6c6c_0001_4a5e_4f0a_9d1b_2f4f_0c11_0002), .STATE(192)) shell (
        .*,
        .k_state({visited, sum, next}),
        .k_rd_address(next[47:6]), .k_rd_lines(2'd0), .k_rd_tag(8'd0),
        .k_wr_valid(1'b0), .k_wr_first(1'b0), .k_wr_fence(1'b0), .k_wr_address('0), .k_wr_lines(2'd0), .k_wr_tag(8'd0),
        .k_wr_data('0)
    );
    plain_register #(.AT(12'h040)) head_register (.*, .value(head));
    plain_register #(.AT(12'h048)) limit_register (.*, .value(limit));

    assign k_finished = !waiting && !k_start && !k_load && (next == '0 || (limit != '0 && visited == limit));
    assign k_rd_valid = !waiting && !k_finished && !k_start && !k_load;

    always_comb
        case (address)
            12'h040: k_value = head;
            12'h048: k_value = limit;
            12'h080: k_value = sum;
            12'h088: k_value = visited;
            12'h090: k_value = next;
            default: k_value = '0;
        endcase

    always_ff @(posedge clk)
        if (reset || k_start) begin
            next    <= reset ? '0 : head;
            sum     <= '0;
            visited <= '0;
            waiting <= 1'b0;
        end else if (k_load) begin
            {visited, sum, next} <= k_loaded;
            waiting <= 1'b0;
        end else begin
            if (k_rd_valid && k_rd_ready) waiting <= 1'b1;
            if (k_rsp_valid) begin
                waiting <= 1'b0;
                // A refused or failed read leaves the place in the list as it is.
                if (!rsp_error) begin
                    next    <= rsp_data[63:0];
                    sum     <= sum + rsp_data[127:64];
                    visited <= visited + 1'b1;
                end
            end
        end
endmodule
