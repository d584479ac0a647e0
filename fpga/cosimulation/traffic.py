"""The test that cocotb runs: random traffic of four ports through the monitor to a foreign AXI memory, and MMIO by a foreign
AXI4-Lite manager. TRANSACTIONS, SEED and PAUSES of the environment are cocotb's way to give a test its arguments."""

import logging
import os
import random
from collections import deque

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam, AxiResp
from model import LINE, SLICE, Port

PORTS = 4
ONES = 2**64 - 1
# Registers of the VCU's page and of a port in it.
VERSION, RESET, DRAINED, FAULTS, OUTSIDE, SILENT, OF_PORT = 0x18, 0x20, 0x28, 0x38, 0x40, 0x48, 0x100
OFFSET, FIRST, LAST, ENABLE, FAULT, REFUSED, READ, WRITTEN = 0x00, 0x08, 0x10, 0x18, 0x30, 0x40, 0x50, 0x58
# Cycles without any answer after which the test fails.
STALL = 20_000


class Shuffled:
    """A channel of the memory's responses that answers ids in any order, and lines of different ids in turns: what AXI allows and
    AxiRam does not do by itself. Responses of one id keep their order."""

    def __init__(self, channel, rng, name, clock):
        self.channel, self.rng, self.name, self.clock = channel, rng, name, clock
        self.queues = {}
        cocotb.start_soon(self.run())

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def send(self, item):
        self.queues.setdefault(int(getattr(item, self.name)), deque()).append(item)

    async def run(self):
        while True:
            await RisingEdge(self.clock)
            waiting = [key for key, queue in self.queues.items() if queue]
            if waiting and self.rng.random() < 0.8:
                await self.channel.send(self.queues[self.rng.choice(waiting)].popleft())


class Bench:
    def __init__(self, dut, rng):
        self.dut, self.rng = dut, rng
        for signal in ("acc_answers", "acc_value", "rd_valid", "rd_address", "rd_lines", "rd_tag", "wr_valid", "wr_first", "wr_fence",
                       "wr_address", "wr_lines", "wr_tag", "wr_data"):
            getattr(dut, signal).value = 0
        self.ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.reset, size=2**20)
        self.mmio = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.reset)
        # Each port's slice is elsewhere in the IO space, and elsewhere in this memory, which repeats itself in it.
        self.ports = []
        for number in range(PORTS):
            base = rng.randrange(2**20) * 2**14 + number * SLICE
            lines = [rng.randbytes(LINE) for _ in range(SLICE)]
            self.ram.write(base * LINE % 2**20, b"".join(lines))
            self.ports.append(Port(number, rng, base, rng.randrange(2**36) * 4, lines))
        self.registers = [{} for _ in range(PORTS)]
        self.silent = set()
        self.answers = deque()
        self.more = True
        self.accesses = 0

    def pauses(self, chance):
        def generator():
            while True:
                yield self.rng.random() < chance
        if chance:
            write, read = self.ram.write_if, self.ram.read_if
            for channel in (write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel,
                            self.mmio.write_if.aw_channel, self.mmio.write_if.w_channel, self.mmio.write_if.b_channel,
                            self.mmio.read_if.ar_channel, self.mmio.read_if.r_channel):
                channel.set_pause_generator(generator())

    def shuffle(self):
        self.ram.write_if.b_channel = Shuffled(self.ram.write_if.b_channel, self.rng, "bid", self.dut.clk)
        self.ram.read_if.r_channel = Shuffled(self.ram.read_if.r_channel, self.rng, "rid", self.dut.clk)

    def memory(self, line):
        return self.ram.read(line * LINE % 2**20, LINE)

    # --- MMIO ---

    async def write(self, address, value, size=8):
        return (await self.mmio.write(address, value.to_bytes(8, "little")[:size])).resp

    async def read(self, address):
        return int.from_bytes((await self.mmio.read(address, 8)).data, "little")

    async def set_up(self):
        assert await self.read(VERSION) == 36 << 24 | PORTS << 16 | 1
        assert await self.read(RESET) == 2**PORTS - 1
        for port in self.ports:
            page = OF_PORT + 0x80 * port.number
            for register, value in ((OFFSET, (port.base - port.guest) % 2**42), (FIRST, port.base), (LAST, port.base + SLICE - 1), (ENABLE, 1)):
                assert await self.write(page + register, value) == AxiResp.OKAY
                assert await self.read(page + register) == value
        assert await self.write(RESET, 0) == AxiResp.OKAY
        while await self.read(RESET):
            pass
        # Not any more.
        assert await self.write(OF_PORT + OFFSET, 1) == AxiResp.SLVERR
        assert await self.write(FAULTS, 2**PORTS - 1) == AxiResp.OKAY

    async def accesses_of_software(self):
        """Registers of accelerators' pages, halves of them, parts of halves, and pages that do not exist."""
        outside = 0
        while self.more:
            number, at = self.rng.randrange(PORTS), 8 * self.rng.randrange(8, 16)
            place, registers = 0x1000 * (number + 1) + at, self.registers[number]
            before = registers.get(at, 0)
            chance, value = self.rng.random(), self.rng.randrange(2**64)
            self.accesses += 1
            if chance < 0.4:
                assert await self.read(place) == before
            elif chance < 0.6:
                assert await self.write(place, value) == AxiResp.OKAY
                assert registers[at] == value
            elif chance < 0.8:
                half = self.rng.randrange(2)
                assert await self.write(place + 4 * half, value % 2**32, 4) == AxiResp.OKAY
                keep = before & (0xffffffff << 32 * (1 - half))
                assert registers[at] == keep | (value % 2**32) << 32 * half
            elif chance < 0.9:
                assert await self.write(place + self.rng.randrange(8), value % 256, 1) == AxiResp.SLVERR
                assert registers.get(at, 0) == before
            else:
                outside += 1
                assert await self.read(0x1000 * self.rng.randrange(PORTS + 1, 256)) == ONES
        assert await self.read(OUTSIDE) == outside

    async def end(self):
        """Counters and records of the ports, and an accelerator that does not answer."""
        assert await self.read(DRAINED) == 2**PORTS - 1
        for port in self.ports:
            page = OF_PORT + 0x80 * port.number
            assert await self.read(page + READ) == port.lines_read
            assert await self.read(page + WRITTEN) == port.lines_written
            assert await self.read(page + REFUSED) == port.refused
            record = await self.read(page + FAULT)
            assert record >> 63 == (port.first_fault is not None)
            port.compare(self.memory)
        self.silent.add(1)
        assert await self.read(0x2040) == ONES and await self.read(SILENT) == 2
        self.silent.clear()
        assert await self.read(0x2040) == ONES and await self.read(0x1040) == self.registers[0].get(0x40, 0)
        for value in (2, 0):
            assert await self.write(RESET, value) == AxiResp.OKAY
        while await self.read(RESET):
            pass
        assert await self.read(SILENT) == 0 and await self.read(0x2040) == self.registers[1].get(0x40, 0)

    # --- one cycle of all ports, in the middle between two edges ---

    def accelerators_pages(self):
        dut = self.dut
        answers = value = 0
        if self.answers and self.answers[0][0] <= 0:
            _, number, word = self.answers.popleft()
            answers, value = 1 << number, word << 64 * number
        self.answers = deque((left - 1, *rest) for left, *rest in self.answers)
        dut.acc_answers.value = answers
        if answers:
            dut.acc_value.value = value
        select = int(dut.acc_select.value)
        if select:
            number = select.bit_length() - 1
            assert select == 1 << number and not int(dut.acc_reset.value) >> number & 1
            at, word = int(dut.acc_address.value), int(dut.acc_data.value)
            old = self.registers[number].get(at, 0)
            if int(dut.acc_write.value):
                mask = (0xffffffff if int(dut.acc_lanes.value) & 1 else 0) | (0xffffffff << 32 if int(dut.acc_lanes.value) & 2 else 0)
                self.registers[number][at] = old & ~mask | word & mask
            if number not in self.silent:
                self.answers.append((self.rng.randrange(0, 20), number, old))

    def responses(self):
        dut = self.dut
        valid, done = int(dut.rsp_valid.value), int(dut.done_valid.value)
        if valid:
            tags, lines, errors, data = (int(signal.value) for signal in (dut.rsp_tag, dut.rsp_line, dut.rsp_error, dut.rsp_data))
            for port in self.ports:
                i = port.number
                if valid >> i & 1:
                    port.response(tags >> 8 * i & 255, lines >> 2 * i & 3, errors >> i & 1, (data >> 512 * i & 2**512 - 1).to_bytes(LINE, "little"))
        if done:
            tags, errors = int(dut.done_tag.value), int(dut.done_error.value)
            for port in self.ports:
                i = port.number
                if done >> i & 1:
                    port.done(tags >> 8 * i & 255, errors >> i & 1, self.memory)
        return valid or done

    def requests(self):
        dut = self.dut
        reads, writes = int(dut.rd_ready.value), int(dut.wr_ready.value)
        rd = dict.fromkeys(("valid", "address", "lines", "tag"), 0)
        wr = dict.fromkeys(("valid", "first", "fence", "address", "lines", "tag", "data"), 0)
        for port in self.ports:
            i = port.number
            port.offer(self.more)
            if port.request is not None:
                address, lines, tag = port.request
                rd["valid"] |= 1 << i
                rd["address"] |= address << 42 * i
                rd["lines"] |= lines << 2 * i
                rd["tag"] |= tag << 8 * i
                if reads >> i & 1:
                    port.read_taken()
            if port.beats and self.rng.random() < 0.9:
                first, fence, address, lines, tag, data, _ = port.beats[0]
                wr["valid"] |= 1 << i
                wr["first"] |= first << i
                wr["fence"] |= fence << i
                wr["address"] |= address << 42 * i
                wr["lines"] |= lines << 2 * i
                wr["tag"] |= tag << 8 * i
                wr["data"] |= int.from_bytes(data, "little") << 512 * i
                if writes >> i & 1:
                    port.beat_taken()
        for prefix, values in (("rd", rd), ("wr", wr)):
            for name, value in values.items():
                if name == "valid" or values["valid"]:
                    getattr(dut, f"{prefix}_{name}").value = value

    def transactions(self):
        return sum(port.counts[kind] for port in self.ports for kind in ("read", "write", "fence"))

    async def run(self, transactions):
        idle = 0
        while self.more or not all(port.quiet() for port in self.ports):
            await FallingEdge(self.dut.clk)
            self.accelerators_pages()
            idle = 0 if self.responses() else idle + 1
            assert idle < STALL, "nothing is answered any more"
            self.requests()
            self.more = self.transactions() < transactions


@cocotb.test()
async def traffic(dut):
    for name in ("cocotb.bench.m_axi", "cocotb.bench.s_axil"):
        logging.getLogger(name).setLevel(logging.ERROR)
    rng = random.Random(int(os.environ["SEED"]))
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.reset.value = 1
    bench = Bench(dut, rng)
    bench.shuffle()
    for _ in range(4):
        await FallingEdge(dut.clk)
    dut.reset.value = 0
    bench.pauses(float(os.environ["PAUSES"]))
    await bench.set_up()
    software = cocotb.start_soon(bench.accesses_of_software())
    await bench.run(int(os.environ["TRANSACTIONS"]))
    # Software's last access is answered by the ports' loop.
    pages = cocotb.start_soon(keep_answering(bench))
    await software
    await bench.end()
    pages.cancel()
    counts = {kind: sum(port.counts[kind] for port in bench.ports) for kind in bench.ports[0].counts}
    print(f"traffic: {bench.transactions()} transactions ({', '.join(f'{count} {kind}' for kind, count in counts.items())}), "
          f"{bench.accesses} accesses by MMIO", flush=True)


async def keep_answering(bench):
    while True:
        await FallingEdge(bench.dut.clk)
        bench.accelerators_pages()
