// SSSP: the shortest distances of a graph's nodes from one node, by Bellman and Ford. LINES lines have four edges each: from, to,
// length (32 bits each) and 32 bits that are not used. All edges are looked at again until a pass changes no distance. Then the
// distances of NODES nodes, 16 in a line, are written; all ones: there is no way. An edge of a node that is not there is no edge.
// One edge per step.
module sssp #(
    parameter int PERIOD = 2
) (
`include "accelerator_ports.svh"
);
    import line_pkg::*;
    localparam int NODES = 512;
    localparam int NODE = $clog2(NODES);
    // Lines that are read ahead. All of them are read again after a pause.
    localparam int DEPTH = 16;
    localparam int SLOT = $clog2(DEPTH);
    localparam int PHASE = PERIOD > 1 ? $clog2(PERIOD) : 1;
    typedef enum logic [1:0] {RELAX, RESULT, ENDED} step_t;
    localparam int STATE = 2 + 1 + 2 + 3 * 32 + 32 + 32 * NODES;

    logic k_start, k_load, k_run, k_finished, k_select, k_rd_valid, k_rd_ready, k_rsp_valid, k_wr_valid, k_wr_ready, k_done_valid;
    logic [63:0] k_value, source, target, lines, nodes, root;
    logic [STATE-1:0] k_loaded, k_state;
    // State: the step; a distance has changed in this pass; the edge in the line; the line in this pass, lines in all passes, passes,
    // lines that are written.
    step_t step;
    logic changed;
    logic [1:0] edge_number;
    logic [31:0] place, taken, passes, put;
    logic [NODES-1:0][31:0] distances;
    assign k_state = {step, changed, edge_number, place, taken, passes, put, distances};

    // Lines that are asked for in this pass; lines of the result.
    logic [31:0] fetched, results;
    logic [DATA-1:0] slots [DEPTH];
    logic [DEPTH-1:0] full;
    logic [PHASE-1:0] phase;
    logic begins, enable;

    job_shell #(.GUID(128'h7373_7370_4a5e_4f0a_9d1b_2f4f_0c11_000d), .STATE(STATE)) shell (
        .*,
        .k_rd_address(source[47:6] + ADDRESS'(fetched)), .k_rd_lines(2'd0), .k_rd_tag(TAG'(fetched[SLOT-1:0])),
        .k_wr_first(1'b1), .k_wr_fence(1'b0), .k_wr_address(target[47:6] + ADDRESS'(put)), .k_wr_lines(2'd0),
        .k_wr_tag(put[TAG-1:0]), .k_wr_data(distances[16*put[NODE-5:0]+:16])
    );
    plain_register #(.AT(12'h040)) source_register (.*, .value(source));
    plain_register #(.AT(12'h048)) target_register (.*, .value(target));
    plain_register #(.AT(12'h050)) lines_register (.*, .value(lines));
    plain_register #(.AT(12'h100)) nodes_register (.*, .value(nodes));
    plain_register #(.AT(12'h108)) root_register (.*, .value(root));

    always_comb
        case (address)
            12'h040: k_value = source;
            12'h048: k_value = target;
            12'h050: k_value = lines;
            12'h080: k_value = 64'(taken);
            12'h088: k_value = 64'(passes);
            12'h100: k_value = nodes;
            12'h108: k_value = root;
            default: k_value = '0;
        endcase

    assign begins = k_start || k_load;
    assign enable = k_run && !begins && phase == '0;
    assign k_rd_valid = !begins && step == RELAX && fetched != lines[31:0] && fetched - place < DEPTH;
    assign k_wr_valid = enable && step == RESULT && put != results;
    assign k_finished = !begins && step == ENDED;

    assign results = nodes > 64'(NODES) ? 32'(NODES / 16) : 32'((nodes + 64'd15) >> 4);

    // The edge, and the way over it.
    logic [127:0] edge_bits;
    logic [31:0] from, to, from_distance, to_distance;
    logic [32:0] way;
    logic shorter, last_line;
    assign edge_bits = slots[place[SLOT-1:0]][128*edge_number+:128];
    assign from = edge_bits[31:0];
    assign to = edge_bits[63:32];
    assign from_distance = distances[from[NODE-1:0]];
    assign to_distance = distances[to[NODE-1:0]];
    assign way = 33'(from_distance) + 33'(edge_bits[95:64]);
    assign shorter = from < 32'(NODES) && to < 32'(NODES) && 64'(from) < nodes && 64'(to) < nodes
        && from_distance != '1 && !way[32] && way[31:0] < to_distance;
    assign last_line = place + 32'd1 == lines[31:0];

    always_ff @(posedge clk) begin
        if (k_rsp_valid) slots[rsp_tag[SLOT-1:0]] <= rsp_data;
        phase <= (reset || begins || phase == PHASE'(PERIOD - 1)) ? '0 : phase + 1'b1;
        if (reset || begins) full <= '0;
        else if (k_rsp_valid) full[rsp_tag[SLOT-1:0]] <= 1'b1;
        if (reset || k_start) begin
            step <= (lines[31:0] == '0) ? RESULT : RELAX;
            {changed, edge_number, place, taken, passes, put, fetched} <= '0;
            for (int i = 0; i < NODES; i++) distances[i] <= '1;
            if (root < 64'(NODES)) distances[root[NODE-1:0]] <= '0;
        end else if (k_load) begin
            {step, changed, edge_number, place, taken, passes, put, distances} <= k_loaded;
            fetched <= k_loaded[32*NODES+96+:32];
        end else begin
            if (k_rd_valid && k_rd_ready) fetched <= fetched + 32'd1;
            if (enable && step == RELAX && full[place[SLOT-1:0]]) begin
                if (shorter) distances[to[NODE-1:0]] <= way[31:0];
                changed <= changed || shorter;
                edge_number <= edge_number + 2'd1;
                if (edge_number == 2'd3) begin
                    full[place[SLOT-1:0]] <= 1'b0;
                    taken <= taken + 32'd1;
                    place <= place + 32'd1;
                    if (last_line) begin
                        passes <= passes + 32'd1;
                        {place, fetched, changed} <= '0;
                        if (!changed && !shorter) step <= RESULT;
                    end
                end
            end
            if (step == RESULT && enable) begin
                if (put == results) step <= ENDED;
                else if (k_wr_ready) put <= put + 32'd1;
            end
        end
    end
endmodule
