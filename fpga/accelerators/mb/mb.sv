// MB: reads and writes memory as fast as it can, up to one request of each kind per cycle, at positions `stride` apart in a
// working set of MASK + 1 lines. Lines that were read are hashed in an order-independent way: the sum of each line's XOR.
module mb (
`include "accelerator_ports.svh"
);
    logic k_start, k_load, k_run, k_finished, k_select, k_rd_valid, k_rd_ready, k_rsp_valid, k_wr_valid, k_wr_ready, k_done_valid;
    logic [63:0] k_value, base, mask, count, stride, mode, target;

    // State: place and number of requests of each direction, lines that came, bursts that were written, the hash.
    logic [31:0] read_place, write_place;
    logic [47:0] read_issued, write_issued, read_lines, written;
    logic [63:0] hash;
    localparam int STATE = 2 * 32 + 4 * 48 + 64;
    logic [STATE-1:0] k_loaded, k_state;
    assign k_state = {read_place, write_place, read_issued, write_issued, read_lines, written, hash};

    // Not saved: the beat of a burst (a burst is finished before saving) and the answer of the last cycle.
    logic [1:0]  beat, lines;
    logic        folded_valid;
    logic [63:0] folded;
    logic        reading, writing;
    logic [31:0] read_masked, write_masked;

    job_shell #(.GUID(128'h6d62_0001_4a5e_4f0a_9d1b_2f4f_0c11_0001), .STATE(STATE)) shell (
        .*,
        .k_rd_address(base[47:6] + 42'(read_masked)), .k_rd_lines(lines), .k_rd_tag(read_issued[7:0]),
        .k_wr_first(beat == 2'd0), .k_wr_fence(1'b0),
        .k_wr_address(target[47:6] + 42'(write_masked)), .k_wr_lines(lines), .k_wr_tag(write_issued[7:0]),
        .k_wr_data({8{write_place, 30'b0, beat}})
    );
    plain_register #(.AT(12'h040)) base_register (.*, .value(base));
    plain_register #(.AT(12'h048)) mask_register (.*, .value(mask));
    plain_register #(.AT(12'h050)) count_register (.*, .value(count));
    plain_register #(.AT(12'h058)) stride_register (.*, .value(stride));
    plain_register #(.AT(12'h060)) mode_register (.*, .value(mode));
    plain_register #(.AT(12'h068)) target_register (.*, .value(target));

    assign lines = mode[1:0];
    assign read_masked = read_place & mask[31:0] & ~{30'b0, lines};
    assign write_masked = write_place & mask[31:0] & ~{30'b0, lines};
    // COUNT 0 never ends.
    assign reading = mode[2] && (count == '0 || read_issued != count[47:0]);
    assign writing = mode[3] && (count == '0 || write_issued != count[47:0] || beat != 2'd0);
    assign k_rd_valid = reading && !k_start && !k_load;
    assign k_wr_valid = writing && !k_start && !k_load;
    assign k_finished = !reading && !writing && !k_start && !k_load;

    always_comb
        case (address)
            12'h040: k_value = base;
            12'h048: k_value = mask;
            12'h050: k_value = count;
            12'h058: k_value = stride;
            12'h060: k_value = mode;
            12'h068: k_value = target;
            12'h080: k_value = hash;
            12'h088: k_value = 64'(read_lines);
            12'h090: k_value = 64'(written);
            default: k_value = '0;
        endcase

    always_ff @(posedge clk) begin
        folded_valid <= k_rsp_valid && !rsp_error && !reset;
        folded <= rsp_data[63:0] ^ rsp_data[127:64] ^ rsp_data[191:128] ^ rsp_data[255:192]
            ^ rsp_data[319:256] ^ rsp_data[383:320] ^ rsp_data[447:384] ^ rsp_data[511:448];
        if (reset || k_start) begin
            {read_place, write_place, read_issued, write_issued, read_lines, written, hash} <= '0;
            beat <= 2'd0;
        end else if (k_load) begin
            {read_place, write_place, read_issued, write_issued, read_lines, written, hash} <= k_loaded;
            beat <= 2'd0;
        end else begin
            if (k_rd_valid && k_rd_ready) begin
                read_place  <= read_place + stride[31:0];
                read_issued <= read_issued + 1'b1;
            end
            if (k_wr_valid && k_wr_ready) begin
                if (beat == lines) begin
                    beat         <= 2'd0;
                    write_place  <= write_place + stride[31:0];
                    write_issued <= write_issued + 1'b1;
                end else beat <= beat + 2'd1;
            end
            if (folded_valid) begin
                hash       <= hash + folded;
                read_lines <= read_lines + 1'b1;
            end
            if (k_done_valid && !done_error) written <= written + 1'b1;
        end
    end
endmodule
