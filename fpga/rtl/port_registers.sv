// The registers of one port in the VCU's page. A slice changes only while the port is in reset and drained; another write to it
// is refused. A port leaves reset only when it is drained, so no response of an old request meets a new owner.
module port_registers #(
    parameter int ADDRESS = line_pkg::ADDRESS
) (
    input  logic               clk,
    input  logic               reset,
    // One write: `select` for a cycle, register by its index (offset / 8).
    input  logic               select,
    input  logic [3:0]         index,
    input  logic [63:0]        value,
    output logic               accepted,
    // Value of the register `read_index`.
    input  logic [3:0]         read_index,
    output logic [63:0]        read_value,

    // The port's bit of the reset register.
    input  logic               reset_bit,
    input  logic               fault_clear,
    input  logic               drained,
    input  logic               running,
    output logic               hold,
    output logic               enable,
    output logic [ADDRESS-1:0] offset,
    output logic [ADDRESS-1:0] first,
    output logic [ADDRESS-1:0] last,
    output logic [3:0]         weight,
    output logic [10:0]        rate,

    input  logic               fault_valid,
    input  line_pkg::fault_t   fault_kind,
    input  logic               fault_write,
    input  logic [1:0]         fault_lines,
    input  logic [ADDRESS-1:0] fault_address,
    input  logic               read_refused,
    input  logic               write_refused,
    input  logic               line_read,
    input  logic               line_written,
    input  logic               stalled
);
    localparam logic [3:0] OFFSET = 0, FIRST = 1, LAST = 2, ENABLE = 3, WEIGHT = 4, RATE = 5, FAULT = 6, FAULT_ADDRESS = 7,
        REFUSED = 8, CYCLES = 9, READ = 10, WRITTEN = 11, STALLED = 12;

    logic [31:0] refused;
    // A write to the slice came at a wrong time.
    logic        slice_refused;
    logic [47:0] cycles, read, written, stalls;
    logic        slice_register, quiet;

    // `hold` alone is not enough: in the cycle in which it begins the auditor may still hold a request.
    assign quiet = hold && reset_bit && drained;
    assign slice_register = index <= ENABLE;
    assign accepted = slice_register ? quiet : (index == WEIGHT || index == RATE);

    always_ff @(posedge clk) begin
        if (reset) begin
            hold   <= 1'b1;
            enable <= 1'b0;
            offset <= '0;
            first  <= '0;
            last   <= '0;
            weight <= 4'd1;
            rate   <= '0;
            slice_refused <= 1'b0;
        end else begin
            hold <= reset_bit || (hold && !drained);
            if (fault_clear) slice_refused <= 1'b0;
            else if (select && slice_register && !quiet) slice_refused <= 1'b1;
            if (select && accepted)
                case (index)
                    OFFSET:  offset <= value[ADDRESS-1:0];
                    FIRST:   first <= value[ADDRESS-1:0];
                    LAST:    last <= value[ADDRESS-1:0];
                    ENABLE:  enable <= value[0];
                    WEIGHT:  weight <= (value[3:0] == '0) ? 4'd1 : value[3:0];
                    RATE:    rate <= (value > 64'd2047) ? 11'd0 : value[10:0];
                    default: ;
                endcase
        end

        if (reset || fault_clear) refused <= '0;
        else if (refused < 32'hffff_fffe) refused <= refused + 32'(read_refused) + 32'(write_refused);
        if (reset) begin
            cycles  <= '0;
            read    <= '0;
            written <= '0;
            stalls  <= '0;
        end else begin
            cycles  <= cycles + 48'(running);
            read    <= read + 48'(line_read);
            written <= written + 48'(line_written);
            stalls  <= stalls + 48'(stalled && !hold);
        end
    end

    always_comb
        case (read_index)
            OFFSET:  read_value = 64'(offset);
            FIRST:   read_value = 64'(first);
            LAST:    read_value = 64'(last);
            ENABLE:  read_value = 64'(enable);
            WEIGHT:  read_value = 64'(weight);
            RATE:    read_value = 64'(rate);
            FAULT:   read_value = {fault_valid, 47'b0, 6'b0, fault_lines, 3'b0, fault_write, fault_kind};
            FAULT_ADDRESS: read_value = 64'(fault_address);
            REFUSED: read_value = {slice_refused, 31'b0, refused};
            CYCLES:  read_value = 64'(cycles);
            READ:    read_value = 64'(read);
            WRITTEN: read_value = 64'(written);
            STALLED: read_value = 64'(stalls);
            default: read_value = '0;
        endcase

`ifdef PROVE_PORT_REGISTERS
    `include "port_registers_proof.svh"
`endif
endmodule
