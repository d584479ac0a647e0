// Register stages between the AXI edge and the auditors. Responses are broadcast to all ports, and each auditor takes its own.
// As many stages as the tree has levels: a synthesizer copies each register towards the ports, so that no stage has more loads
// than a node of the tree.
module response_pipe #(
    parameter int STAGES = 3,
    parameter int WIDTH  = 8
) (
    input  logic             clk,
    input  logic             reset,
    input  logic             in_valid,
    input  logic [WIDTH-1:0] in_item,
    output logic             out_valid,
    output logic [WIDTH-1:0] out_item
);
    logic [STAGES-1:0] valid;
    logic [STAGES-1:0][WIDTH-1:0] item;
    for (genvar i = 0; i < STAGES; i++) begin : at
        always_ff @(posedge clk) begin
            valid[i] <= !reset && (i == 0 ? in_valid : valid[i == 0 ? 0 : i-1]);
            if (i == 0) begin
                if (in_valid) item[i] <= in_item;
            end else if (valid[i == 0 ? 0 : i-1]) item[i] <= item[i == 0 ? 0 : i-1];
        end
    end
    assign out_valid = valid[STAGES-1];
    assign out_item = item[STAGES-1];
endmodule
