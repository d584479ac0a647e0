//! Waveforms of a simulated card: which cycles go into which file.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::image::{Image, ImageError};

/// Which cycles are recorded.
///
/// ```
/// use aviary_card::WaveformOptions;
///
/// // The last 10,000 cycles before the first fault.
/// let options = WaveformOptions { file: "fault.fst".into(), from: 0, cycles: Some(10_000), on_fault: true };
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaveformOptions {
    /// FST. Its times are half cycles of the monitor's clock since the card began to be reset: cycle c is at 2 c + 16.
    pub file: PathBuf,
    /// The first cycle.
    pub from: u64,
    /// Cycles in the file; `None`: until the card ends, or the first fault.
    pub cycles: Option<u64>,
    /// The first fault ends the recording. So that the cycles before it are there, a file that is full is kept as
    /// [`WaveformOptions::earlier`] while the next one is written.
    pub on_fault: bool,
}

impl WaveformOptions {
    /// The file with the cycles before those in `file`, if `on_fault` and `cycles` are given.
    pub fn earlier(&self) -> PathBuf {
        let mut name = OsString::from("before-");
        name.push(self.file.file_name().unwrap_or_default());
        self.file.with_file_name(name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaveformState {
    Awaited,
    Written { since: u64 },
    Ended,
}

/// What has been recorded.
#[derive(Debug)]
pub struct Waveforms {
    options: WaveformOptions,
    state: WaveformState,
    /// First and last cycle of each file, the latest one last.
    files: Vec<(PathBuf, u64, u64)>,
    /// The cycle of the fault that ended it.
    fault: Option<u64>,
}

impl Waveforms {
    /// Opens the file, so that what is wrong with it is known now.
    ///
    /// # Errors
    /// The image records no waveforms.
    pub fn new(options: WaveformOptions, image: &mut Image) -> Result<Waveforms, ImageError> {
        image.trace(Some(&options.file))?;
        image.trace(None)?;
        Ok(Waveforms { options, state: WaveformState::Awaited, files: Vec::new(), fault: None })
    }

    /// Before this cycle is simulated.
    pub fn before(&mut self, now: u64, image: &mut Image) {
        match (self.state, self.options.cycles) {
            (WaveformState::Awaited, _) if now >= self.options.from => self.begin(now, image),
            (WaveformState::Written { since }, Some(cycles)) if now - since >= cycles => {
                self.end(now, image);
                if self.options.on_fault {
                    let earlier = self.options.earlier();
                    // A file that cannot be renamed is written over, and its cycles are lost.
                    if std::fs::rename(&self.options.file, &earlier).is_ok() {
                        self.files = self.files.pop().map(|(_, from, to)| (earlier, from, to)).into_iter().collect();
                    }
                    self.begin(now, image);
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, now: u64, image: &mut Image) {
        // It could be opened once.
        let opened = image.trace(Some(&self.options.file)).is_ok();
        self.state = if opened { WaveformState::Written { since: now } } else { WaveformState::Ended };
    }

    /// The card ends, or the recording.
    pub fn end(&mut self, now: u64, image: &mut Image) {
        if let WaveformState::Written { since } = self.state {
            let _ = image.trace(None);
            self.files.push((self.options.file.clone(), since, now));
        }
        self.state = WaveformState::Ended;
    }

    /// A request was refused or a job has failed, up to this cycle.
    pub fn note_fault(&mut self, now: u64, image: &mut Image) {
        if self.options.on_fault && matches!(self.state, WaveformState::Written { .. }) {
            self.end(now, image);
            self.fault = Some(now);
        }
    }
}

/// What is where, in a line.
impl fmt::Display for Waveforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(((file, from, to), before)) = self.files.split_last() else {
            return write!(f, "no waveforms: the card did not come to cycle {}", self.options.from);
        };
        let shown = |file: &Path| file.display().to_string();
        write!(f, "waveforms of cycles {from} to {to} are in {}", shown(file))?;
        before.iter().try_for_each(|(file, from, to)| write!(f, ", those of {from} to {to} in {}", shown(file)))?;
        match self.fault {
            Some(cycle) => write!(f, "; a fault at cycle {cycle} has ended them"),
            None if self.options.on_fault => write!(f, "; there was no fault"),
            None => Ok(()),
        }
    }
}
