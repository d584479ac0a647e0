"""One port's accelerator that asks for anything, and what the monitor must answer: requests of all lengths, with any tag, fences,
and requests that must be refused."""

from collections import deque

LINE = 64
# Lines of a slice, and requests of each kind that a port has under way.
SLICE = 1024
UNDERWAY = 24
# Kinds of faults of the monitor's page: shape, below, above, no burst.
SHAPE, BELOW, ABOVE, BURST = 1, 2, 3, 5


class Port:
    """Its slice begins at line `base` of the IO space and at line `guest` of its accelerator's addresses. `lines` is what memory
    has, as bytes of each line of the slice."""

    def __init__(self, number, random, base, guest, lines):
        self.number, self.random, self.base, self.guest, self.lines = number, random, base, guest, lines
        # By tag: what is expected, oldest first. A read is [good, lines that are still to come]; a write is (kind, error).
        self.reads, self.writes = {}, {}
        # Lines that reads or writes under way touch, with their number of uses.
        self.reading, self.writing = {}, {}
        # What is offered until it is taken.
        self.request, self.beats = None, deque()
        self.counts = {"read": 0, "write": 0, "fence": 0, "refused": 0}
        self.refused = self.lines_read = self.lines_written = 0
        self.first_fault = None

    # --- requests ---

    def address(self, line):
        return (self.guest + line) % 2**42

    def span(self):
        """A good request: its first line and its number of lines."""
        count = self.random.choice((1, 2, 4))
        return self.random.randrange(SLICE // count) * count, count

    def outside(self):
        """A request that must be refused: (first line relative to the slice, lines - 1, kind of fault)."""
        kind = self.random.choice((SHAPE, BELOW, ABOVE))
        lines = self.random.choice((0, 1, 3))
        if kind == BELOW:
            return -(lines + 1) * self.random.randrange(1, 10**6), lines, kind
        if kind == ABOVE:
            return SLICE + (lines + 1) * self.random.randrange(10**6), lines, kind
        if self.random.random() < 0.5:
            return self.random.randrange(SLICE - 4), 2, kind
        lines = self.random.choice((1, 3))
        return self.random.randrange(0, SLICE - 4, 4) + 1, lines, kind

    def tag(self, expected, good):
        """Any tag; requests of one tag are answered in order, but not refused ones with others."""
        while True:
            tag = self.random.randrange(256)
            if all(entry[0] == good == "good" for entry in expected.get(tag, ())):
                return tag

    def new_read(self):
        if self.random.random() < 0.06:
            at, lines, kind = self.outside()
            tag = self.tag(self.reads, "refused")
            self.reads.setdefault(tag, deque()).append(["refused", deque((line, None, None) for line in range(lines + 1)), kind])
            return self.address(at), lines, tag
        at, count = self.span()
        if any(line in self.writing for line in range(at, at + count)):
            return None
        tag = self.tag(self.reads, "good")
        answers = deque((line, self.lines[at + line], at + line) for line in range(count))
        for _, _, where in answers:
            self.reading[where] = self.reading.get(where, 0) + 1
        self.reads.setdefault(tag, deque()).append(["good", answers, None])
        return self.address(at), count - 1, tag

    def new_beats(self):
        """Beats of one burst, or a fence: (first, fence, address, lines - 1, tag, data, what is expected at its end)."""
        chance = self.random.random()
        data = [self.random.randbytes(LINE) for _ in range(4)]
        if chance < 0.06:
            return [(1, 1, self.random.randrange(2**42), 0, self.tag(self.writes, "refused"), data[0], ("fence",))]
        if chance < 0.08:
            return [(0, 0, self.random.randrange(2**42), 3, self.tag(self.writes, "refused"), data[0], ("refused", BURST))]
        if chance < 0.13:
            at, lines, kind = self.outside()
            tag = self.tag(self.writes, "refused")
            beats = [(int(i == 0), 0, self.address(at), lines, tag, data[i], None) for i in range(lines + 1)]
            return [*beats[:-1], (*beats[-1][:6], ("refused", kind))]
        at, count = self.span()
        if any(line in self.reading or line in self.writing for line in range(at, at + count)):
            return []
        tag = self.tag(self.writes, "good")
        for i in range(count):
            self.writing[at + i] = data[i]
        # Address, lines and tag belong to the first beat only.
        return [(int(i == 0), 0, self.address(at) if i == 0 else self.random.randrange(2**42), count - 1 if i == 0 else 0,
                 tag if i == 0 else 0, data[i], ("good", at, count, tag) if i == count - 1 else None) for i in range(count)]

    def offer(self, more):
        """What the port asks for in this cycle, if it asks."""
        if self.request is None and more and sum(map(len, self.reads.values())) < UNDERWAY and self.random.random() < 0.5:
            self.request = self.new_read()
        if not self.beats and more and sum(map(len, self.writes.values())) < UNDERWAY and self.random.random() < 0.5:
            self.beats.extend(self.new_beats())

    def read_taken(self):
        self.counts["read"] += 1
        self.request = None

    def beat_taken(self):
        _, _, _, _, tag, _, end = self.beats.popleft()
        if end is None:
            return
        if end[0] == "good":
            self.counts["write"] += 1
            tag = end[3]
        elif end[0] == "fence":
            self.counts["fence"] += 1
            # It must wait for these.
            end = ("fence", [entry for queue in self.writes.values() for entry in queue if entry[0] == "good"])
        else:
            self.counts["write"] += 1
        self.writes.setdefault(tag, deque()).append(end)

    # --- answers ---

    def fault(self, write, kind):
        self.refused += 1
        self.counts["refused"] += 1
        if self.first_fault is None:
            self.first_fault = (write, kind)

    def response(self, tag, line, error, data):
        queue = self.reads.get(tag)
        assert queue, f"port {self.number}: a response with tag {tag} that nobody waits for"
        sort, answers, kind = queue[0]
        number, expected, where = answers.popleft()
        assert line == number, f"port {self.number}, tag {tag}: line {line} of a response, expected {number}"
        assert error == (sort == "refused"), f"port {self.number}, tag {tag}: error {error} of a {sort} read"
        assert data == (expected or bytes(LINE)), f"port {self.number}, tag {tag}, line {line}: wrong data"
        if where is not None:
            self.lines_read += 1
            self.reading[where] -= 1
            if not self.reading[where]:
                del self.reading[where]
        if not answers:
            queue.popleft()
            if sort == "refused":
                self.fault(0, kind)

    def done(self, tag, error, memory):
        queue = self.writes.get(tag)
        assert queue, f"port {self.number}: a write is told as done with tag {tag} that nobody waits for"
        end = queue.popleft()
        assert error == (end[0] == "refused"), f"port {self.number}, tag {tag}: error {error} of {end[0]} write"
        if end[0] == "refused":
            self.fault(1, end[1])
        elif end[0] == "good":
            for line in range(end[1], end[1] + end[2]):
                self.lines[line] = self.writing.pop(line)
                self.lines_written += 1
        else:
            waiting = {id(entry) for entries in self.writes.values() for entry in entries}
            assert not any(id(entry) in waiting for entry in end[1]), f"port {self.number}: a fence is answered before a write"
            self.compare(memory, but=self.writing)

    def compare(self, memory, but=()):
        """Memory has what was written."""
        for line, expected in enumerate(self.lines):
            if line not in but:
                assert memory(self.base + line) == expected, f"port {self.number}: line {line} of memory is wrong"

    def quiet(self):
        return self.request is None and not self.beats and not any(self.reads.values()) and not any(self.writes.values())
