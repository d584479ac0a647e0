"""The proofs of the monitor: what is proven, with which parameters, and the mutants that must be refuted.

The data path is cut to 8 bits and addresses to a few; widths do not matter to what is claimed.
"""

from dataclasses import dataclass, field

PACKAGE = "line_pkg.sv"
SMALL = {"ADDRESS": 5, "TAG": 2, "DATA": 8, "PORT": 2, "UNDERWAY": 3}


@dataclass(frozen=True)
class Mutant:
    """A change of the RTL that breaks the property: `old` occurs once in `file`."""

    name: str
    file: str
    old: str
    new: str
    # Takes minutes: only with --long.
    long: bool = False


@dataclass(frozen=True)
class Proof:
    """A module with the properties of NAME_proof.svh."""

    name: str
    claim: str
    top: str
    files: tuple
    parameters: dict = field(default_factory=dict, hash=False)
    covers: tuple = ()
    mutants: tuple = ()
    # Cycles from reset within which covers are reached and mutants refuted, and steps that the induction may take.
    depth: int = 16
    steps: int = 4
    # The properties' name, if it is not that of the module.
    proof: str = ""


PROOFS = (
    Proof(
        "reads", "(a) and (b): reads that fit leave, once and in order, others get errors; the count is exact; responses pass to their owner", "audit_reads",
        (PACKAGE, "stage.sv", "slice_check.sv", "audit_reads.sv"), SMALL,
        ("f_cover_leaves", "f_cover_full", "f_cover_refused", "f_cover_answered", "f_cover_new_owner", "f_cover_lines"),
        (
            Mutant("no bounds check (the original's flaw)", "slice_check.sv",
                   "if (!enable) fault = FAULT_DISABLED;", "if (1'b1) fault = FAULT_NONE;"),
            Mutant("upper bound only (the original's flaw)", "slice_check.sv",
                   "else if (address < first) fault = FAULT_BELOW;", ""),
            Mutant("first line of a burst only", "slice_check.sv",
                   "{1'b0, address} + (ADDRESS + 1)'(lines);", "{1'b0, address};"),
            Mutant("unaligned bursts pass", "slice_check.sv",
                   "lines == 2'd2 || (address[1:0] & lines) != 2'd0", "lines == 2'd2"),
            Mutant("check before translation", "audit_reads.sv", ".address(held_sum)", ".address(held_address)"),
            Mutant("number of the port from the tag", "audit_reads.sv",
                   "({port, held_tag, held_lines, held_sum})", "({PORT'(held_tag), held_tag, held_lines, held_sum})"),
            Mutant("responses of all ports pass", "audit_reads.sv",
                   "assign mine = r_valid && r_port == port;", "assign mine = r_valid;"),
            Mutant("responses pass in reset", "audit_reads.sv",
                   "rsp_valid <= !reset && !hold && (mine || inject);", "rsp_valid <= !reset && (mine || inject);"),
            Mutant("each line of a response counts as a request", "audit_reads.sv",
                   "COUNT'(mine && r_last && underway != '0)", "COUNT'(mine && underway != '0)"),
            Mutant("drained as soon as nothing is held", "audit_reads.sv",
                   "assign idle = underway == '0 && !held;", "assign idle = !held;"),
            Mutant("refusal shows another port's line", "audit_reads.sv",
                   "else if (inject) rsp_data <= '0;", "else if (inject) rsp_data <= r_data;"),
            Mutant("lines of responses are counted like refused ones", "audit_reads.sv", "rsp_line  <= mine ? r_line : refused_line;",
                   "rsp_line  <= refused_line;"),
            Mutant("each refused request is answered once, not by line", "audit_reads.sv",
                   "assign refused = inject && refused_line == held_lines;", "assign refused = inject;"),
            Mutant("a refused request is answered when a response passes", "audit_reads.sv",
                   "assign inject = held && !hold && fault != FAULT_NONE && !mine;", "assign inject = held && !hold && fault != FAULT_NONE;"),
            Mutant("tag of the request after", "audit_reads.sv", "({port, held_tag, held_lines, held_sum})",
                   "({port, rd_tag, held_lines, held_sum})"),
            Mutant("request lost while the tree is full", "audit_reads.sv", "assign held_leaves = leaves || refused;",
                   "assign held_leaves = (wants_lines == held_lines && permit) || refused;"),
            Mutant("fault record has the translated address", "audit_reads.sv", "assign refused_address = held_address;",
                   "assign refused_address = held_sum;"),
        ),
    ),
    Proof(
        "writes", "(a) and (b): bursts that fit leave whole, once and in order, others are answered once with an error; fences; the count", "audit_writes",
        (PACKAGE, "slice_check.sv", "audit_writes.sv"), {**SMALL, "ADDRESS": 4, "DATA": 2, "TAG": 1},
        ("f_cover_burst", "f_cover_full", "f_cover_refused", "f_cover_cut", "f_cover_fence", "f_cover_told"),
        (
            Mutant("half a burst leaves when its port is reset", "audit_writes.sv",
                   "assign out_valid = get != complete;", "assign out_valid = get != put;"),
            Mutant("half a burst stays when its port is reset", "audit_writes.sv",
                   "else if (hold) put <= complete;", ""),
            Mutant("a refused burst's second line is written", "audit_writes.sv",
                   "(follows && !dropping);", "follows;"),
            Mutant("no room kept for the rest of a burst", "audit_writes.sv",
                   "assign space = {1'b0, used} + 5'(held_lines) < 5'(DEPTH);", "assign space = used < 4'(DEPTH);"),
            Mutant("fence answered as an error", "audit_writes.sv", "answer_error = 1'b0;\n            consume = answer;",
                   "answer_error = 1'b1;\n            consume = answer;"),
            Mutant("data of a beat is that of the beat before", "audit_writes.sv", "leaves, last_beat, held_data",
                   "leaves, last_beat, buffer[put[2:0]-3'd1][DATA-1:0]"),
            Mutant("a refused write is told as done", "audit_writes.sv", "done_error <= mine ? b_error : answer_error;",
                   "done_error <= mine ? b_error : 1'b0;"),
            Mutant("fence answered with writes under way", "audit_writes.sv", "answer = underway == '0 && !mine;", "answer = !mine;"),
            Mutant("a refused burst is answered at each beat", "audit_writes.sv",
                   "answer = !mine && left == 2'd1;\n            consume = answer || left != 2'd1;", "answer = !mine;\n            consume = answer;"),
            Mutant("a refused burst is not answered", "audit_writes.sv",
                   "answer = !mine && left == 2'd1;\n            consume = answer || left != 2'd1;", "consume = 1'b1;"),
            Mutant("an answer is lost when a response passes", "audit_writes.sv",
                   "answer = !mine && (held_lines == 2'd0 || !held_first);", "answer = held_lines == 2'd0 || !held_first;"),
            Mutant("tag of a burst's last beat", "audit_writes.sv", "follows ? burst_tag : held_tag;", "held_tag;"),
            Mutant("last beat of a burst is not marked", "audit_writes.sv", "leaves ? held_lines == 2'd0 : left == 2'd1;",
                   "leaves ? held_lines == 2'd0 : left == 2'd2;"),
            Mutant("fence waits for ever", "audit_writes.sv", "if (begins && held_fence) begin", "if (begins && held_fence && held_first) begin"),
        ),
    ),
    Proof(
        "slices", "(c): a slice changes, and a port leaves reset, only in reset and drained", "port_registers",
        (PACKAGE, "port_registers.sv"), {"ADDRESS": 5}, ("f_cover_changed", "f_cover_refused", "f_cover_released"),
        (
            Mutant("offset written before the reset (the original's flaw)", "port_registers.sv",
                   "assign quiet = hold && reset_bit && drained;", "assign quiet = drained;"),
            Mutant("offset written with requests under way (the original's flaw)", "port_registers.sv",
                   "assign quiet = hold && reset_bit && drained;", "assign quiet = hold && reset_bit;"),
            Mutant("reset ends with requests under way", "port_registers.sv",
                   "hold <= reset_bit || (hold && !drained);", "hold <= reset_bit;"),
        ),
    ),
    Proof(
        "mux", "(d): a node loses, duplicates, invents and reorders nothing, never stands still; a wait is at most INPUTS - 1 grants", "mux_node",
        ("stage.sv", "mux_node.sv"), {"INPUTS": 3, "WIDTH": 8}, ("f_cover_burst", "f_cover_full", "f_cover_waited"),
        (
            Mutant("item dropped under back-pressure", "stage.sv", "assign in_ready = !spare_valid;", "assign in_ready = 1'b1;"),
            Mutant("item sent twice", "stage.sv", "spare_valid <= 1'b0;\n        end else if (in_valid && in_ready)",
                   "spare_valid <= spare_valid;\n        end else if (in_valid && in_ready)"),
            Mutant("bursts interleaved", "mux_node.sv", "if (bursting) pick = owner;", ""),
            Mutant("fixed priority", "mux_node.sv",
                   "next <= (int'(pick) == INPUTS - 1) ? '0 : pick + 1'b1;", "next <= '0;"),
            Mutant("only the next input in turn is looked at", "mux_node.sv", "if (pool[candidate]) pick = INDEX'(candidate);", ""),
            Mutant("nothing is taken while an item waits to leave", "mux_node.sv",
                   "assign in_ready = room ? grant : '0;", "assign in_ready = (room && !out_valid) ? grant : '0;"),
            Mutant("end of a burst of another input", "mux_node.sv", "bursting <= !in_last[pick];", "bursting <= !in_last[next];"),
            Mutant("item of the next input in place of the picked one", "mux_node.sv",
                   "in_lines[pick], in_item[pick]})", "in_lines[pick], in_item[next]})"),
        ),
    ),
    Proof(
        "weights", "(d) with weights: the same; a wait is at most twice the others' lines of a round and 3 of each", "mux_node",
        ("stage.sv", "mux_node.sv"), {"INPUTS": 2, "WIDTH": 8, "WEIGHTED": 1, "WEIGHT": 2}, ("f_cover_burst", "f_cover_full"),
        (
            Mutant("an idle input saves credit", "mux_node.sv", "if (filled > quantum) filled = quantum;", ""),
            Mutant("all inputs pay for one", "mux_node.sv", "(int'(pick) == i) ? filled", "1'b1 ? filled"),
            Mutant("requests are paid for, not lines", "mux_node.sv", "filled - $signed(CREDIT'({1'b0, in_lines[i]})) - CREDIT'(1)",
                   "filled - CREDIT'(1)"),
            Mutant("a node without credit stands still", "mux_node.sv", "assign pool = replenish ? in_valid : eligible;",
                   "assign pool = eligible;"),
            Mutant("a new round begins while an input has credit", "mux_node.sv",
                   "assign replenish = eligible == '0;", "assign replenish = !eligible[0];"),
            Mutant("an input in debt is served", "mux_node.sv",
                   "in_valid[i] && !credit[i][CREDIT-1] && credit[i] != '0;", "in_valid[i] && credit[i] != '0;"),
        ),
    ),
    Proof(
        "tree", "(d) in a tree of four ports: nothing is lost or reordered, bursts stay together; a node weighs by sums",
        "mux_tree", (PACKAGE, "stage.sv", "mux_node.sv", "mux_tree.sv"), {"PORTS": 4, "ARITY": 2, "WIDTH": 6, "WEIGHTED": 1},
        ("f_cover_burst", "f_cover_full"),
        (
            Mutant("weight of one port below in place of the sum", "mux_tree.sv", "total += sum", "total = sum"),
            Mutant("a node weighs by its neighbour's ports", "mux_tree.sv", "localparam int FIRST = node * ARITY;",
                   "localparam int FIRST = (ABOVE - 1 - node) * ARITY;"),
            Mutant("readiness of another node's stream", "mux_tree.sv", ".out_ready (ready[level+1][node]),",
                   ".out_ready (ready[level+1][ABOVE-1-node]),"),
            Mutant("ends of bursts are lost between levels", "mux_tree.sv", ".out_last  (last[level+1][node]),",
                   ".out_last  (last[level+1][ABOVE-1-node]),"),
            Mutant("bursts interleaved in a tree", "mux_node.sv", "if (bursting) pick = owner;", ""),
        ),
    ),
    Proof(
        "mmio", "(e): an MMIO access reaches one page and gets one answer in bounded time", "mmio_router",
        ("mmio_router.sv",), {"PORTS": 2, "BITS": 14, "TIMEOUT": 4},
        ("f_cover_local", "f_cover_port", "f_cover_silent", "f_cover_outside", "f_cover_speaks_again", "f_cover_cleared", "f_cover_part",
         "f_cover_turns"),
        (
            Mutant("MMIO decoded without looking if it is one (the original's flaw)", "mmio_router.sv",
                   "assign local_select = state == LOCAL;", "assign local_select = int'(page) == SHELL_PAGES;"),
            Mutant("page compared in part", "mmio_router.sv",
                   "target[i] = int'(page) == SHELL_PAGES + 1 + i;", "target[i] = page[0] == 1'(SHELL_PAGES + 1 + i);"),
            Mutant("wait without end", "mmio_router.sv", "else if (waited == TIME'(TIMEOUT - 1)) begin", "else if (1'b0) begin"),
            Mutant("late answer taken for that of another access", "mmio_router.sv",
                   "? target & ~hold & ~silent : '0;", "? target & ~hold : '0;"),
            Mutant("answer of any port taken", "mmio_router.sv", "if (target[i] && port_answers[i]) begin", "if (port_answers[i]) begin"),
            Mutant("a silent accelerator stays silent after a reset", "mmio_router.sv", "silent <= silent & ~hold;", "silent <= silent;"),
            Mutant("nobody becomes silent", "mmio_router.sv", "silent <= (silent | target) & ~hold;", "silent <= silent & ~hold;"),
            Mutant("writes starve reads", "mmio_router.sv", "(writes_turn || !arvalid);", "1'b1;"),
            Mutant("reads starve writes", "mmio_router.sv", "(writes_turn || !arvalid);", "!arvalid;"),
            Mutant("parts of halves reach a page", "mmio_router.sv",
                   "lanes_fit      <= take_read || wstrb == 8'hff || wstrb == 8'hf0 || wstrb == 8'h0f;", "lanes_fit      <= 1'b1;"),
            Mutant("parts of halves reach the VCU", "mmio_router.sv",
                   "if (int'(page) == SHELL_PAGES && lanes_fit) state <= LOCAL;", "if (int'(page) == SHELL_PAGES) state <= LOCAL;"),
            Mutant("all ports become silent with one", "mmio_router.sv",
                   "silent <= (silent | target) & ~hold;", "silent <= ~hold;"),
            Mutant("refused write told as done", "mmio_router.sv", "bresp <= SLVERR;", "bresp <= OKAY;"),
            Mutant("silent port told as outside", "mmio_router.sv",
                   "outside <= target == '0 && int'(page) != SHELL_PAGES;", "outside <= int'(page) != SHELL_PAGES;"),
            Mutant("halves of a write exchanged", "mmio_router.sv", "{wstrb[4], wstrb[0]}", "{wstrb[0], wstrb[4]}"),
        ),
    ),
    Proof(
        "monitor", "(f): with two ports whose accelerators and software do anything, no AXI address outside the slice of its id",
        "monitor",
        (PACKAGE, "stage.sv", "slice_check.sv", "audit_reads.sv", "audit_writes.sv", "bucket.sv", "auditor.sv", "mux_node.sv",
         "mux_tree.sv", "mmio_router.sv", "port_registers.sv", "vcu.sv", "axi_edge.sv", "response_pipe.sv", "pass_through.sv",
         "monitor.sv"),
        {"PORTS": 2, "ADDRESS": 4, "TAG": 1, "DATA": 1, "PORT": 1, "UNDERWAY": 2, "MMIO_BITS": 14},
        ("f_cover_read", "f_cover_write"),
        (
            Mutant("offset written with requests under way, in the whole monitor", "port_registers.sv",
                   "assign quiet = hold && reset_bit && drained;", "assign quiet = hold && reset_bit;", long=True),
            Mutant("no bounds check, in the whole monitor", "slice_check.sv",
                   "else if (final_line > {1'b0, last}) fault = FAULT_ABOVE;", ""),
            Mutant("ports crossed", "monitor.sv", ".last(last[i]), .rate(rate[i])", ".last(last[PORTS-1-i]), .rate(rate[i])", long=True),
        ),
        depth=40,
    ),
    Proof(
        "edge", "(g): AXI's addresses and data are the tree's requests, in order, stable until taken; responses keep id and line",
        "axi_edge", (PACKAGE, "axi_edge.sv"), {"ADDRESS": 2, "DATA": 2, "ID": 2},
        ("f_cover_burst", "f_cover_ahead", "f_cover_interleaved"),
        (
            Mutant("data of a beat never changes", "axi_edge.sv", "wdata <= write_data;", "wdata <= wdata;"),
            Mutant("all lines of a response are line 0", "axi_edge.sv",
                   "next_line[rid] <= rlast ? 2'd0 : next_line[rid] + 2'd1;", "next_line[rid] <= 2'd0;"),
            Mutant("lines of all ids are counted together", "axi_edge.sv", "r_line  <= next_line[rid];", "r_line  <= next_line[0];"),
            Mutant("address replaced before it is taken", "axi_edge.sv",
                   "assign write_ready = data_free && (!write_first || address_free);", "assign write_ready = data_free;"),
            Mutant("data replaced before it is taken", "axi_edge.sv", "assign data_free = !wvalid || wready;", "assign data_free = 1'b1;"),
            Mutant("read address replaced before it is taken", "axi_edge.sv",
                   "assign read_ready = !arvalid || arready;", "assign read_ready = 1'b1;"),
            Mutant("address withdrawn when its data is taken", "axi_edge.sv",
                   "else if (awready) awvalid <= 1'b0;", "else if (awready || wready) awvalid <= 1'b0;"),
            Mutant("last beat from the length of the burst after", "axi_edge.sv", "wlast <= write_last;", "wlast <= write_lines == '0;"),
            Mutant("id of a write address from the reads", "axi_edge.sv", "awid   <= write_id;", "awid   <= read_id;"),
            Mutant("error of a write response lost", "axi_edge.sv", "b_error <= bresp[1];", "b_error <= bresp[0];"),
        ),
    ),
    Proof(
        "rate", "(h): in any window no more lines pass the limit than the rate gives in it and one burst", "bucket", ("bucket.sv",),
        {}, ("f_cover_denied", "f_cover_taken"),
        (
            Mutant("any credit is enough", "bucket.sv", "credit >= cost;", "credit != '0;"),
            Mutant("credit is saved without a bound", "bucket.sv", "(kept > 14'(FULL)) ? 14'(FULL) : kept;", "kept;"),
            Mutant("credit is saved without a bound while requests leave", "bucket.sv", "(kept > 14'(FULL)) ?",
                   "(kept > 14'(FULL) && !take) ?"),
            Mutant("a burst costs one line", "bucket.sv", "{1'b0, {1'b0, lines} + 3'd1, 10'b0};", "{1'b0, 3'd1, 10'b0};"),
            Mutant("credit is not filled", "bucket.sv", "assign filled = credit + {3'b0, rate};", "assign filled = credit;"),
        ),
    ),
    Proof(
        "auditor", "(h): under a limit one request leaves in a cycle and pays for itself, in turns; the first fault is kept", "auditor",
        (PACKAGE, "stage.sv", "slice_check.sv", "audit_reads.sv", "audit_writes.sv", "bucket.sv", "auditor.sv"),
        {**SMALL, "ADDRESS": 4, "DATA": 2, "TAG": 1}, ("f_cover_turns", "f_cover_fault"),
        (
            Mutant("a write pays for the lines of a read that waits", "auditor.sv",
                   ".lines(read_chosen ? read_wants_lines : write_wants_lines)", ".lines(read_wants ? read_wants_lines : write_wants_lines)"),
            Mutant("reads first under a limit", "auditor.sv", "read_wants && (!write_wants || reads_turn);", "read_wants;"),
            Mutant("writes pay nothing", "auditor.sv", ".take(read_leaves || write_leaves)", ".take(read_leaves)"),
            Mutant("record of the last fault, not of the first", "auditor.sv", "if (!fault_valid) begin", "if (read_refused || write_refused) begin"),
            Mutant("drained when reads are", "auditor.sv", "assign drained = read_idle && write_idle;", "assign drained = read_idle;"),
        ),
    ),
    Proof(
        "vcu", "(i): a write to the VCU's page changes what its address says and nothing else; reads show it", "vcu",
        (PACKAGE, "port_registers.sv", "vcu.sv"), {"PORTS": 2, "ADDRESS": 5}, ("f_cover_slice", "f_cover_refused"),
        (
            Mutant("fault records cleared by any write", "vcu.sv", "(store && address == FAULTS) ? data", "store ? data"),
            Mutant("a write reaches the registers of all ports", "vcu.sv", "store && in_ports && int'(which) == i;", "store && in_ports;"),
            Mutant("half of a register is written", "vcu.sv", "assign store = select && write && lanes == 2'b11;",
                   "assign store = select && write;"),
            Mutant("ports leave reset by a write elsewhere", "vcu.sv", "else if (store && address == RESET)", "else if (store && !in_ports)"),
            Mutant("refused write told as accepted", "vcu.sv", "? |(port_select & port_accepted) : known", "? 1'b1 : known"),
        ),
    ),
)
