// The virtualization control unit: its page of MMIO registers (docs/fpga-monitor.md has the map) and the settings of all ports.
module vcu #(
    parameter int PORTS   = 8,
    parameter int ADDRESS = line_pkg::ADDRESS,
    // log2 of the bytes of a slice that software plans with; only told.
    parameter int SLICE   = 36,
    parameter logic [127:0] GUID = 128'h0
) (
    input  logic               clk,
    input  logic               reset,
    // An access to the page, one cycle; see mmio_router.
    input  logic               select,
    input  logic               write,
    input  logic [11:0]        address,
    input  logic [1:0]         lanes,
    input  logic [63:0]        data,
    output logic [63:0]        value,
    output logic               accepted,
    input  logic               outside,
    input  logic [PORTS-1:0]   silent,

    input  logic [PORTS-1:0]   drained,
    input  logic [PORTS-1:0]   running,
    output logic [PORTS-1:0]   hold,
    output logic [PORTS-1:0]   fault_clear,
    output logic [PORTS-1:0]   enable,
    output logic [PORTS-1:0][ADDRESS-1:0] offset,
    output logic [PORTS-1:0][ADDRESS-1:0] first,
    output logic [PORTS-1:0][ADDRESS-1:0] last,
    output logic [PORTS-1:0][3:0]  weight,
    output logic [PORTS-1:0][10:0] rate,

    input  logic [PORTS-1:0]   fault_valid,
    input  line_pkg::fault_t [PORTS-1:0] fault_kind,
    input  logic [PORTS-1:0]   fault_write,
    input  logic [PORTS-1:0][1:0] fault_lines,
    input  logic [PORTS-1:0][ADDRESS-1:0] fault_address,
    input  logic [PORTS-1:0]   read_refused,
    input  logic [PORTS-1:0]   write_refused,
    input  logic [PORTS-1:0]   line_read,
    input  logic [PORTS-1:0]   line_written,
    input  logic [PORTS-1:0]   stalled
);
    import line_pkg::*;
    localparam logic [11:0] HEADER = 12'h000, GUID_LOW = 12'h008, GUID_HIGH = 12'h010, VERSION = 12'h018, RESET = 12'h020,
        DRAINED = 12'h028, RUNNING = 12'h030, FAULTS = 12'h038, OUTSIDE = 12'h040, SILENT = 12'h048;
    // An AFU's device feature header: type 1, end of list.
    localparam logic [63:0] HEADER_VALUE = 64'h1000_0100_0000_0000;

    logic [PORTS-1:0] reset_bits, port_accepted, port_select;
    logic [PORTS-1:0][63:0] port_value;
    logic [31:0] outside_count;
    logic store, in_ports;
    logic [11:0] place;
    logic [4:0] which;
    logic known;

    assign store = select && write && lanes == 2'b11;
    assign in_ports = address >= 12'h100 && address < 12'h100 + 12'(PORTS * 'h80);
    assign place = address - 12'h100;
    assign which = place[11:7];
    always_comb
        for (int i = 0; i < PORTS; i++) port_select[i] = store && in_ports && int'(which) == i;
    assign fault_clear = (store && address == FAULTS) ? data[PORTS-1:0] : '0;
    assign known = address == RESET || address == FAULTS || address == OUTSIDE;
    assign accepted = lanes == 2'b11 && (in_ports ? |(port_select & port_accepted) : known);

    always_ff @(posedge clk) begin
        if (reset) reset_bits <= '1;
        else if (store && address == RESET) reset_bits <= data[PORTS-1:0];
        if (reset || (store && address == OUTSIDE)) outside_count <= '0;
        else if (outside && outside_count != '1) outside_count <= outside_count + 1'b1;
    end

    always_comb begin
        value = '0;
        case (address)
            HEADER:    value = HEADER_VALUE;
            GUID_LOW:  value = GUID[63:0];
            GUID_HIGH: value = GUID[127:64];
            VERSION:   value = {32'b0, 8'(SLICE), 8'(PORTS), MONITOR_VERSION};
            RESET:     value = 64'(hold);
            DRAINED:   value = 64'(drained);
            RUNNING:   value = 64'(running);
            FAULTS:    value = 64'(fault_valid | silent);
            OUTSIDE:   value = 64'(outside_count);
            SILENT:    value = 64'(silent);
            default:
                for (int i = 0; i < PORTS; i++)
                    if (in_ports && int'(which) == i) value = port_value[i];
        endcase
    end

    for (genvar i = 0; i < PORTS; i++) begin : of_port
        port_registers #(.ADDRESS(ADDRESS)) registers (
            .clk, .reset,
            .select(port_select[i]), .index(place[6:3]), .value(data), .accepted(port_accepted[i]),
            .read_index(place[6:3]), .read_value(port_value[i]),
            .reset_bit(reset_bits[i]), .fault_clear(fault_clear[i]), .drained(drained[i]), .running(running[i]),
            .hold(hold[i]), .enable(enable[i]), .offset(offset[i]), .first(first[i]), .last(last[i]),
            .weight(weight[i]), .rate(rate[i]),
            .fault_valid(fault_valid[i]), .fault_kind(fault_kind[i]), .fault_write(fault_write[i]),
            .fault_lines(fault_lines[i]), .fault_address(fault_address[i]),
            .read_refused(read_refused[i]), .write_refused(write_refused[i]),
            .line_read(line_read[i]), .line_written(line_written[i]), .stalled(stalled[i])
        );
    end

`ifdef PROVE_VCU
    `include "vcu_proof.svh"
`endif
endmodule
