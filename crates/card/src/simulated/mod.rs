//! The simulated card: steps an image cycle by cycle and serves it.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

mod waveforms;

pub use waveforms::WaveformOptions;
use waveforms::Waveforms;

use crate::axi::Axi;
use crate::board::{Board, Escape, MmioRefused, Stop};
use crate::description::{DescriptionError, ImageDescription};
use crate::escapes::Escapes;
use crate::image::ImageError;
use crate::image::{Image, Pins};
use crate::iommu::{IoFault, IommuError, Rights};
use crate::memory::ClientMemory;
use crate::mmio::{Access, Phase};

/// Cycles that the card stays in reset when it begins.
const RESET_CYCLES: u64 = 8;
/// Cycles that an MMIO access takes at most: the router answers within 64 cycles of an accelerator's silence. More is a broken
/// image.
const MMIO_CYCLES: u64 = 1000;

/// Cycles without work after which the clock may stand still: registers behind the monitor's `busy` have settled then, and an
/// interrupt that a job raises at its end has come out.
const SETTLE_CYCLES: u32 = 4;

/// A card cannot be started.
///
/// ```
/// use aviary_card::{CardError, Simulated};
/// use std::path::Path;
///
/// let error = Simulated::start(Path::new("/no/such/image.so")).err();
/// assert!(matches!(error, Some(CardError::Description(_))));
/// ```
#[derive(Debug, Error, displaydoc::Display)]
pub enum CardError {
    /// {0}
    Description(#[from] DescriptionError),
    /// {0}
    Image(#[from] ImageError),
}

/// Counts of the model since the card began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Cycles that were simulated; [`Board::now`] counts those in which the clock could stand still, too.
    pub stepped: u64,
    pub lines_read: u64,
    pub lines_written: u64,
    pub tlb_hits: u64,
    pub tlb_misses: u64,
}

/// A card that is simulated cycle by cycle, with a model of link, IOMMU and memory. It has no thread of its own: it runs while one
/// of its functions does, so an idle card uses no CPU. With the same calls, two cards do the same in each cycle.
///
/// ```no_run
/// use aviary_card::{Board, Simulated, Stop};
/// use std::path::Path;
///
/// // An image that fpga/build made, with its description beside it.
/// let mut card = Simulated::start(Path::new("build/all.so"))?;
/// while card.advance(1_000) == Stop::Elapsed {}
/// println!("idle after {} cycles", card.now());
/// # Ok::<(), aviary_card::CardError>(())
/// ```
pub struct Simulated {
    description: ImageDescription,
    image: Image,
    pins: Pins,
    axi: Axi,
    escapes: Escapes,
    now: u64,
    stepped: u64,
    interrupts: u64,
    /// Cycles in a row in which nothing was under way, up to [`SETTLE_CYCLES`].
    quiet: u32,
    /// The clock does not stand still then: the file's times are simulated cycles.
    waveforms: Option<Waveforms>,
}

impl Simulated {
    /// Loads the image `path` and the description beside it (`.json`), and resets the card.
    ///
    /// # Errors
    /// See [`CardError`].
    pub fn start(path: &Path) -> Result<Self, CardError> {
        Self::start_described(path, ImageDescription::read(&path.with_extension("json"))?)
    }

    /// The same with a description that was read before, and whose model may have been changed.
    ///
    /// # Errors
    /// See [`CardError`].
    pub fn start_described(path: &Path, description: ImageDescription) -> Result<Self, CardError> {
        let image = Image::load(path)?;
        let mut card = Self {
            axi: Axi::new(description.model),
            escapes: Escapes::new(description.ports.len()),
            description,
            image,
            pins: Pins::default(),
            now: 0,
            stepped: 0,
            interrupts: 0,
            quiet: 0,
            waveforms: None,
        };
        card.pins.reset = 1;
        for _ in 0..RESET_CYCLES {
            card.image.step(&mut card.pins);
        }
        card.pins.reset = 0;
        Ok(card)
    }

    /// Requests that left the slice of their port: there must be none. The pass-through build has no slices.
    pub fn escaped(&self) -> u64 {
        self.escapes.count()
    }

    pub fn statistics(&self) -> Statistics {
        let (tlb_hits, tlb_misses) = self.axi.iommu.tlb_counts();
        let (lines_read, lines_written) = self.axi.carried;
        Statistics { stepped: self.stepped, lines_read, lines_written, tlb_hits, tlb_misses }
    }

    /// Records waveforms from now on. The card must not have run yet.
    ///
    /// # Errors
    /// The image has none, or the file cannot be made.
    pub fn record(&mut self, options: WaveformOptions) -> Result<(), CardError> {
        self.waveforms = Some(Waveforms::new(options, &mut self.image)?);
        Ok(())
    }

    /// Ends the recording and says what is in its files; `None`: there was none.
    pub fn end_recording(&mut self) -> Option<String> {
        let mut waveforms = self.waveforms.take()?;
        waveforms.end(self.now, &mut self.image);
        Some(waveforms.to_string())
    }

    /// One cycle. Returns the phase of the MMIO access after it, and the read beats and write bursts that were answered.
    fn step_phase(&mut self, phase: Phase) -> (Phase, (usize, usize)) {
        let answered = self.axi.drive(self.now, &mut self.pins);
        phase.drive(&mut self.pins);
        let escapes = (!self.description.bypass).then_some(&mut self.escapes);
        self.axi.take(self.now, &self.pins, escapes);
        let phase = phase.after(&self.pins);
        if let Some(waveforms) = &mut self.waveforms {
            waveforms.before(self.now, &mut self.image);
        }
        self.image.step(&mut self.pins);
        self.interrupts |= self.pins.interrupt;
        self.now += 1;
        self.stepped += 1;
        if self.axi.has_faults() {
            self.note_failed_job();
        }
        let works = self.pins.busy != 0 || !self.axi.is_idle();
        self.quiet = if works { 0 } else { SETTLE_CYCLES.min(self.quiet + 1) };
        (phase, answered)
    }

    /// One cycle without an MMIO access.
    fn step(&mut self) -> (usize, usize) {
        self.step_phase(Phase::Answered(0)).1
    }

    fn is_idle(&self) -> bool {
        self.quiet == SETTLE_CYCLES
    }

    /// Steps to this cycle; where nothing happens, the clock is set forward instead.
    fn pass_until(&mut self, end: u64) {
        while self.now < end {
            if self.is_idle() && self.waveforms.is_none() {
                self.now = end;
                return;
            }
            self.step();
        }
    }

    /// One MMIO access, which takes the host `cycles` in all.
    fn access(&mut self, access: Access, cycles: u64) -> u64 {
        let began = self.now;
        let mut phase = Phase::Offered(access);
        while self.now < began + MMIO_CYCLES {
            phase = self.step_phase(phase).0;
            if let Phase::Answered(value) = phase {
                self.pass_until(began + cycles);
                return value;
            }
        }
        u64::MAX
    }

    fn write_access(&mut self, address: u32, value: u64, strobe: u8) -> Result<(), MmioRefused> {
        let cycles = self.description.model.mmio_write_cycles;
        match self.access(Access::Write { address: address & !7, value, strobe }, cycles) {
            0 => Ok(()),
            _ => Err(MmioRefused(address)),
        }
    }
}

impl Board for Simulated {
    fn first_escape(&self) -> Option<Escape> {
        self.escapes.first()
    }

    fn description(&self) -> &ImageDescription {
        &self.description
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn read(&mut self, address: u32) -> u64 {
        let cycles = self.description.model.mmio_read_cycles;
        self.access(Access::Read { address: address & !7 }, cycles)
    }

    fn write(&mut self, address: u32, value: u64) -> Result<(), MmioRefused> {
        self.write_access(address, value, 0xff)?;
        let page = self.description.shell_pages * 0x1000;
        if address & !0xfff == page {
            self.escapes.note_write(address - page, value);
        }
        Ok(())
    }

    fn write_half(&mut self, address: u32, value: u32) -> Result<(), MmioRefused> {
        let (shift, strobe) = if address & 4 == 0 { (0, 0x0f) } else { (32, 0xf0) };
        self.write_access(address, u64::from(value) << shift, strobe)
    }

    fn map(
        &mut self,
        address: u64,
        memory: &Arc<ClientMemory>,
        offset: u64,
        length: u64,
        rights: Rights,
    ) -> Result<(), IommuError> {
        self.axi.iommu.map(address, memory, offset, length, rights)
    }

    fn unmap(&mut self, address: u64, length: u64) -> Result<(), IommuError> {
        self.axi.iommu.unmap(address, length)?;
        // Requests that come from here on do not find the entry. Those that did are answered in order.
        let (mut reads, mut writes) = self.axi.under_way();
        while reads > 0 || writes > 0 {
            let (read, written) = self.step();
            (reads, writes) = (reads.saturating_sub(read), writes.saturating_sub(written));
        }
        Ok(())
    }

    fn advance(&mut self, cycles: u64) -> Stop {
        let end = self.now.saturating_add(cycles);
        let seen = self.interrupts;
        while self.now < end {
            if self.is_idle() {
                return Stop::Idle;
            }
            self.step();
            if self.interrupts != seen {
                return Stop::Interrupt;
            }
        }
        Stop::Elapsed
    }

    fn take_interrupts(&mut self) -> u64 {
        std::mem::take(&mut self.interrupts)
    }

    fn note_failed_job(&mut self) {
        if let Some(waveforms) = &mut self.waveforms {
            waveforms.note_fault(self.now, &mut self.image);
        }
    }

    fn take_io_faults(&mut self) -> (Vec<IoFault>, u64) {
        self.axi.take_faults()
    }
}
