// Takes MMIO accesses from an AXI4-Lite manager, one at a time, decides by the page which single target gets each, and answers
// each exactly once. A page outside, a port in reset, and an accelerator that does not answer within TIMEOUT cycles read as all
// ones. An accelerator that let an access pass gets no further one until its port is reset: a late answer would be taken for the
// answer to another access.
module mmio_router #(
    parameter int PORTS       = 8,
    // Address bits of the window, and pages at its beginning that the shell keeps.
    parameter int BITS        = 20,
    parameter int SHELL_PAGES = 0,
    parameter int TIMEOUT     = 64
) (
    input  logic             clk,
    input  logic             reset,

    input  logic             awvalid,
    output logic             awready,
    input  logic [BITS-1:0]  awaddr,
    input  logic             wvalid,
    output logic             wready,
    input  logic [63:0]      wdata,
    input  logic [7:0]       wstrb,
    output logic             bvalid,
    input  logic             bready,
    output logic [1:0]       bresp,
    input  logic             arvalid,
    output logic             arready,
    input  logic [BITS-1:0]  araddr,
    output logic             rvalid,
    input  logic             rready,
    output logic [63:0]      rdata,
    output logic [1:0]       rresp,

    // The VCU's own page: `local_select` for one cycle; answered in the same cycle.
    output logic             local_select,
    input  logic [63:0]      local_value,
    input  logic             local_accepted,

    // Accelerators' pages: `port_select` for one cycle.
    output logic [PORTS-1:0] port_select,
    output logic             access_write,
    output logic [11:0]      access_address,
    // Halves of the 64-bit word that are written.
    output logic [1:0]       access_lanes,
    output logic [63:0]      access_data,
    input  logic [PORTS-1:0] port_answers,
    input  logic [PORTS-1:0][63:0] port_value,
    input  logic [PORTS-1:0] hold,

    // An accelerator let an access pass; an access went to no page.
    output logic [PORTS-1:0] port_silent,
    output logic             outside,
    output logic             busy
);
    localparam int PAGE = BITS - 12;
    localparam int TIME = $clog2(TIMEOUT + 1);
    localparam logic [1:0] OKAY = 2'b00, SLVERR = 2'b10;

    typedef enum logic [2:0] {IDLE, DECODE, LOCAL, WAIT, ANSWER} state_t;
    state_t           state;
    logic             writes_turn, take_write, take_read;
    logic [PAGE-1:0]  page;
    logic [PORTS-1:0] target, silent;
    logic [TIME-1:0]  waited;
    logic             lanes_fit;

    assign take_write = state == IDLE && awvalid && wvalid && (writes_turn || !arvalid);
    assign take_read = state == IDLE && arvalid && !take_write;
    assign awready = take_write;
    assign wready = take_write;
    assign arready = take_read;
    assign bvalid = state == ANSWER && access_write;
    assign rvalid = state == ANSWER && !access_write;
    assign busy = state != IDLE || arvalid || awvalid;

    always_comb
        for (int i = 0; i < PORTS; i++) target[i] = int'(page) == SHELL_PAGES + 1 + i;
    assign local_select = state == LOCAL;
    assign port_select = (state == DECODE && lanes_fit) ? target & ~hold & ~silent : '0;
    assign port_silent = silent;

    always_ff @(posedge clk) begin
        outside <= 1'b0;
        if (take_write || take_read) begin
            access_write   <= take_write;
            access_address <= take_write ? {awaddr[11:3], 3'b0} : {araddr[11:3], 3'b0};
            page           <= take_write ? awaddr[BITS-1:12] : araddr[BITS-1:12];
            access_lanes   <= take_write ? {wstrb[4], wstrb[0]} : 2'b11;
            access_data    <= wdata;
            // Whole halves only.
            lanes_fit      <= take_read || wstrb == 8'hff || wstrb == 8'hf0 || wstrb == 8'h0f;
        end
        case (state)
            DECODE: begin
                rdata <= '1;
                bresp <= SLVERR;
                rresp <= OKAY;
                waited <= '0;
            end
            LOCAL: begin
                rdata <= local_value;
                bresp <= local_accepted ? OKAY : SLVERR;
            end
            WAIT: begin
                waited <= waited + 1'b1;
                for (int i = 0; i < PORTS; i++)
                    if (target[i] && port_answers[i]) begin
                        rdata <= port_value[i];
                        bresp <= OKAY;
                    end
            end
            default: ;
        endcase

        if (reset) begin
            state       <= IDLE;
            writes_turn <= 1'b1;
            silent      <= '0;
        end else begin
            silent <= silent & ~hold;
            case (state)
                IDLE:
                    if (take_write || take_read) begin
                        state <= DECODE;
                        writes_turn <= take_read;
                    end
                DECODE:
                    if (int'(page) == SHELL_PAGES && lanes_fit) state <= LOCAL;
                    else if (port_select != '0) state <= WAIT;
                    else begin
                        state <= ANSWER;
                        outside <= target == '0 && int'(page) != SHELL_PAGES;
                    end
                LOCAL: state <= ANSWER;
                WAIT:
                    if ((target & (port_answers | hold)) != '0) state <= ANSWER;
                    else if (waited == TIME'(TIMEOUT - 1)) begin
                        state <= ANSWER;
                        silent <= (silent | target) & ~hold;
                    end
                ANSWER: if (access_write ? bready : rready) state <= IDLE;
                default: state <= IDLE;
            endcase
        end
    end

`ifdef PROVE_MMIO_ROUTER
    `include "mmio_router_proof.svh"
`endif
endmodule
