// Compares a translated request with a slice, at both ends. The check comes after the translation, so what it passes is what
// leaves: no arithmetic follows.
module slice_check #(
    parameter int ADDRESS = line_pkg::ADDRESS
) (
    input  logic               enable,
    input  logic [ADDRESS-1:0] first,
    input  logic [ADDRESS-1:0] last,
    // Translated address of the first line, and the number of lines less one.
    input  logic [ADDRESS-1:0] address,
    input  logic [1:0]         lines,
    output line_pkg::fault_t   fault
);
    import line_pkg::*;
    // One bit more, so that a burst beyond the end of the address space does not wrap to its beginning.
    logic [ADDRESS:0] final_line;
    assign final_line = {1'b0, address} + (ADDRESS + 1)'(lines);

    always_comb
        if (!enable) fault = FAULT_DISABLED;
        else if (lines == 2'd2 || (address[1:0] & lines) != 2'd0) fault = FAULT_SHAPE;
        else if (address < first) fault = FAULT_BELOW;
        else if (final_line > {1'b0, last}) fault = FAULT_ABOVE;
        else fault = FAULT_NONE;
endmodule
