//! The model behind the card's AXI4 manager: the link, the IOMMU before memory, and memory's latency. It serves requests in the
//! order in which they come, from clients' memory.
//!
//! A request takes its turn at the translation (one per cycle; a walk of the page table takes `walk_cycles`, one at a time) and
//! then at the link of its direction (`lines_per_1000_cycles`); it is answered `read_latency` or `write_latency` later. All times
//! are decided when the request is taken, so the same requests have the same times.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::LINE;
use crate::description::ModelParameters;
use crate::escapes::Escapes;
use crate::image::Pins;
use crate::iommu::{IoFault, Iommu};
use crate::memory::{ClientMemory, Line};

/// AXI's response for an address that nothing answers.
const DECERR: u8 = 0b11;
/// Beats of write data that the link buffers.
const DATA_BEATS: usize = 16;
/// Faults that are kept for a report; the rest is counted.
const KEPT_FAULTS: usize = 16;

/// A line's place in memory; `None` if the page table refused it.
type Target = Option<(Arc<ClientMemory>, u64)>;

/// One direction of the link.
#[derive(Debug, Default)]
struct Direction {
    /// When the link is free again, in 1/`lines_per_1000_cycles` of a cycle.
    free: u64,
    /// When the requests that were taken get the link, in cycles, in order; at most `requests` of them.
    waiting: VecDeque<u64>,
}

impl Direction {
    /// Forgets the requests that have got the link by now, and says if there is room for another.
    fn has_room(&mut self, now: u64, requests: usize) -> bool {
        while self.waiting.front().is_some_and(|start| *start <= now) {
            self.waiting.pop_front();
        }
        self.waiting.len() < requests
    }

    /// Takes the link for these lines, not before `ready`; returns when each of them has crossed.
    fn carry(&mut self, ready: u64, lines: u64, rate: u64) -> impl Iterator<Item = u64> + use<> {
        let start = self.free.max(ready * rate);
        self.waiting.push_back(start / rate);
        self.free = start + lines * 1000;
        (1..=lines).map(move |line| (start + line * 1000).div_ceil(rate))
    }
}

/// A beat of read data that is due at a cycle.
#[derive(Debug)]
struct ReadBeat {
    due: u64,
    id: u16,
    last: bool,
    target: Target,
}

/// A write burst that is due at a cycle.
#[derive(Debug)]
struct WriteBurst {
    due: u64,
    id: u16,
    target: Target,
    lines: Vec<Line>,
}

/// The model and what is under way in it.
#[derive(Debug)]
pub struct Axi {
    model: ModelParameters,
    pub iommu: Iommu,
    /// When the translation is free again, in cycles.
    translation_free: u64,
    reads: Direction,
    writes: Direction,
    read_beats: VecDeque<ReadBeat>,
    write_bursts: VecDeque<WriteBurst>,
    /// Write addresses whose data did not all come yet: id, address, lines.
    addresses: VecDeque<(u16, u64, u64)>,
    data: VecDeque<Line>,
    faults: Vec<IoFault>,
    fault_count: u64,
    /// Lines that were read and written.
    pub carried: (u64, u64),
}

impl Axi {
    pub fn new(model: ModelParameters) -> Self {
        Self {
            model,
            iommu: Iommu::new(model.tlb_entries),
            translation_free: 0,
            reads: Direction::default(),
            writes: Direction::default(),
            read_beats: VecDeque::new(),
            write_bursts: VecDeque::new(),
            addresses: VecDeque::new(),
            data: VecDeque::new(),
            faults: Vec::new(),
            fault_count: 0,
            carried: (0, 0),
        }
    }

    /// Is nothing under way?
    pub fn is_idle(&self) -> bool {
        self.read_beats.is_empty() && self.write_bursts.is_empty() && self.addresses.is_empty() && self.data.is_empty()
    }

    /// Translated and not yet answered: read beats and write bursts. The model answers in order.
    pub fn under_way(&self) -> (usize, usize) {
        (self.read_beats.len(), self.write_bursts.len())
    }

    pub fn has_faults(&self) -> bool {
        self.fault_count != 0
    }

    pub fn take_faults(&mut self) -> (Vec<IoFault>, u64) {
        (std::mem::take(&mut self.faults), std::mem::take(&mut self.fault_count))
    }

    /// Sets the inputs of the next edge: readies, and responses that are due. Returns the numbers of read beats and write bursts
    /// that are answered.
    pub fn drive(&mut self, now: u64, pins: &mut Pins) -> (usize, usize) {
        pins.arready = u8::from(self.reads.has_room(now, self.model.requests));
        pins.awready =
            u8::from(self.writes.has_room(now, self.model.requests) && self.addresses.len() < self.model.requests);
        pins.wready = u8::from(self.data.len() < DATA_BEATS);
        pins.rvalid = 0;
        if self.read_beats.front().is_some_and(|beat| beat.due <= now)
            && let Some(beat) = self.read_beats.pop_front()
        {
            pins.rvalid = 1;
            pins.rid = beat.id;
            pins.rlast = u8::from(beat.last);
            pins.rresp = if beat.target.is_some() { 0 } else { DECERR };
            pins.rdata = beat.target.map_or(Line::default(), |(memory, offset)| memory.read_line(offset));
        }
        pins.bvalid = 0;
        if self.write_bursts.front().is_some_and(|burst| burst.due <= now)
            && let Some(burst) = self.write_bursts.pop_front()
        {
            pins.bvalid = 1;
            pins.bid = burst.id;
            pins.bresp = if burst.target.is_some() { 0 } else { DECERR };
            if let Some((memory, offset)) = burst.target {
                for (line, place) in burst.lines.iter().zip((offset..).step_by(LINE as usize)) {
                    memory.write_line(place, line);
                }
            }
        }
        (usize::from(pins.rvalid), usize::from(pins.bvalid))
    }

    /// Takes the requests that the edge transfers: valid and ready at the same time.
    pub fn take(&mut self, now: u64, pins: &Pins, escapes: Option<&mut Escapes>) {
        let read = (pins.arvalid & pins.arready != 0).then(|| (pins.arid, pins.araddr, u64::from(pins.arlen) + 1));
        let write = (pins.awvalid & pins.awready != 0).then(|| (pins.awid, pins.awaddr, u64::from(pins.awlen) + 1));
        if let Some(escapes) = escapes {
            if let Some((id, address, lines)) = read {
                escapes.check(now, id, address, lines, false);
            }
            if let Some((id, address, lines)) = write {
                escapes.check(now, id, address, lines, true);
            }
        }
        if let Some((id, address, lines)) = read {
            self.start_read(now, id, address, lines);
        }
        self.addresses.extend(write);
        if pins.wvalid & pins.wready != 0 {
            self.data.push_back(pins.wdata);
        }
        if let Some(&(id, address, lines)) = self.addresses.front()
            && self.data.len() as u64 >= lines
        {
            self.addresses.pop_front();
            let data = self.data.drain(..usize::try_from(lines).unwrap_or(0)).collect();
            self.start_write(now, id, address, data);
        }
    }

    /// Translates a request: its target, and the cycle at which it may cross the link.
    fn translate(&mut self, now: u64, id: u16, address: u64, write: bool) -> (Target, u64) {
        let start = self.translation_free.max(now);
        let (target, cycles) = match self.iommu.translate(address, write) {
            Ok(found) => (Some((found.memory, found.offset)), if found.hit { 0 } else { self.model.walk_cycles }),
            // A walk that finds nothing takes as long.
            Err(read_only) => {
                self.fault_count += 1;
                if self.faults.len() < KEPT_FAULTS {
                    self.faults.push(IoFault { at: now, port: (id >> 8) as u8, address, write, read_only });
                }
                (None, self.model.walk_cycles)
            }
        };
        self.translation_free = start + cycles + 1;
        (target, start + cycles)
    }

    fn start_read(&mut self, now: u64, id: u16, address: u64, lines: u64) {
        let (target, ready) = self.translate(now, id, address, false);
        self.carried.0 += lines;
        let latency = self.model.read_latency;
        for (line, crossed) in self.reads.carry(ready, lines, self.model.lines_per_1000_cycles).enumerate() {
            let line = line as u64;
            self.read_beats.push_back(ReadBeat {
                due: crossed + latency,
                id,
                last: line + 1 == lines,
                target: target.clone().map(|(memory, offset)| (memory, offset + line * LINE)),
            });
        }
    }

    fn start_write(&mut self, now: u64, id: u16, address: u64, data: Vec<Line>) {
        let lines = data.len() as u64;
        let (target, ready) = self.translate(now, id, address, true);
        self.carried.1 += lines;
        let crossed = self.writes.carry(ready, lines, self.model.lines_per_1000_cycles).last().unwrap_or(ready);
        self.write_bursts.push_back(WriteBurst { due: crossed + self.model.write_latency, id, target, lines: data });
    }
}
