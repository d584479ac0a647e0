// Words that the monitor and accelerators share. A line is 64 bytes, the unit of every memory request; a line address has 42
// bits and counts lines of the 48-bit IO space. The number of lines of a request is carried as lines - 1: 0, 1 or 3.
package line_pkg;
    localparam int ADDRESS = 42;
    localparam int TAG = 8;
    localparam int DATA = 512;
    // A port's number and a tag are the id of an AXI request.
    localparam int PORT = 4;
    localparam int ID = PORT + TAG;
    localparam int MAX_PORTS = 16;

    // Version of the register map of the VCU (docs/fpga-monitor.md).
    localparam logic [15:0] MONITOR_VERSION = 16'd1;

    // Why a request was refused: the kind in a port's fault record.
    typedef enum logic [3:0] {
        FAULT_NONE = 4'd0,
        // Not 1, 2 or 4 lines, or not aligned to their number.
        FAULT_SHAPE = 4'd1,
        // The first line lies below the slice.
        FAULT_BELOW = 4'd2,
        // The last line lies above the slice, or beyond the address space.
        FAULT_ABOVE = 4'd3,
        // The port has no slice.
        FAULT_DISABLED = 4'd4,
        // A write beat that begins no burst and belongs to none.
        FAULT_BURST = 4'd5,
        // An MMIO access that the accelerator did not answer.
        FAULT_MMIO = 4'd6
    } fault_t;

    // Values of an accelerator's CONTROL register: commands that are written, and states that are read.
    localparam logic [2:0] COMMAND_START = 3'd1, COMMAND_PAUSE = 3'd2, COMMAND_RESUME = 3'd3;
    typedef enum logic [2:0] {
        JOB_IDLE = 3'd0, JOB_RUNNING = 3'd1, JOB_SAVING = 3'd2, JOB_SAVED = 3'd3,
        JOB_LOADING = 3'd4, JOB_DONE = 3'd5, JOB_ERROR = 3'd6
    } job_t;

    // Levels of a tree with this many leaves; 1 for a single leaf, too, so that each port has a registered stage.
    function automatic int levels(int leaves, int arity);
        int count = 1;
        int reach = arity;
        while (reach < leaves) begin
            count++;
            reach *= arity;
        end
        return count;
    endfunction
endpackage
