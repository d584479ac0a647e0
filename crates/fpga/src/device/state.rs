//! What of a device outlives its process: words, which the process that keeps the connection has after each message.

use super::card::{Asked, Card, MOST_LATE};
use super::config_space::{CONFIG_BYTES, ConfigSpace};
use super::control_page::HalfWritten;
use super::fpga_device::{FpgaDevice, MessageCounts};
use super::vm_memory::{KnownFile, MapCounts, VmMemory};
use crate::link::Request;

const WORD: usize = 8;
const FILE_WORDS: usize = 4;

/// Words that are taken one after the other.
struct Taken<'a>(&'a [u8]);

impl Taken<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }

    fn words<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.word()?;
        }
        Some(words)
    }
}

fn flag(is: bool) -> u64 {
    u64::from(is)
}

/// A request that is held for the card, in three words; a reset is a write of no bytes.
fn of_held(request: &Request) -> [u64; 3] {
    match *request {
        Request::Write { offset, bytes, value } => [offset.into(), bytes.into(), value],
        _ => [0; 3],
    }
}

fn held([offset, bytes, value]: [u64; 3]) -> Option<Request> {
    match u32::try_from(bytes).ok()? {
        0 => Some(Request::Reset),
        bytes => Some(Request::Write { offset: u32::try_from(offset).ok()?, bytes, value }),
    }
}

impl<C: Card> FpgaDevice<C> {
    /// `asked`: of the card so far.
    pub fn state(&self, asked: &Asked) -> Vec<u8> {
        let requests = asked.requests;
        let MessageCounts { reads, writes, maps, unmaps, bad } = self.counts;
        let MapCounts { refused, first_refused, outside, lost } = self.memory.counts;
        let base = self.memory.base();
        let mut words = vec![requests, self.guid[0], self.guid[1], self.state_bytes, self.state_address, self.error];
        words.extend([flag(self.has_version), reads, writes, maps, unmaps, bad]);
        words.extend([refused, first_refused.0, first_refused.1.into(), outside, lost]);
        words.extend([self.memory.region_bytes(), flag(base.is_some()), base.unwrap_or(0), self.memory.next_file]);
        for half in &self.half_written {
            words.extend(half.words());
        }
        words.push(self.memory.unmapping.len() as u64);
        words.extend(self.memory.unmapping.iter().flat_map(|(address, length)| [*address, *length]));
        words.extend([flag(asked.is_over), asked.perhaps_made as u64, asked.held.len() as u64]);
        words.extend(asked.held.iter().flat_map(of_held));
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(self.config.read(0, CONFIG_BYTES as usize));
        for KnownFile { device, inode, length, id } in &self.memory.files {
            [device, inode, length, id].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        }
        bytes
    }

    /// The device of another process again, and what was asked of its card. `None`: that is no state.
    pub fn again(card: C, state: &[u8]) -> Option<(FpgaDevice<C>, Asked)> {
        let mut taken = Taken(state);
        let [requests, high, low, state_bytes, state_address, error, version] = taken.words()?;
        let [reads, writes, maps, unmaps, bad] = taken.words()?;
        let [refused, first_refused, first_errno, outside, lost] = taken.words()?;
        let [region_bytes, has_base, base, next_file] = taken.words()?;
        let half_written =
            [HalfWritten::of(taken.words()?), HalfWritten::of(taken.words()?), HalfWritten::of(taken.words()?)];
        let ranges = taken.word()?;
        let unmapping = (0..ranges).map(|_| taken.words().map(|[address, length]| (address, length)));
        let unmapping = unmapping.collect::<Option<Vec<_>>>()?;
        let [is_over, perhaps_made, count] = taken.words()?;
        let late =
            (0..count.min(MOST_LATE as u64)).map(|_| taken.words().and_then(held)).collect::<Option<Vec<_>>>()?;
        let perhaps_made = usize::try_from(perhaps_made).ok()?;
        let asked = Asked { requests, is_over: is_over == 1, held: late, perhaps_made };
        let (config, files) = taken.0.split_at_checked(CONFIG_BYTES as usize)?;
        let file = |[device, inode, length, id]: [u64; FILE_WORDS]| KnownFile { device, inode, length, id };
        let files = files.chunks(FILE_WORDS * WORD).map(|file| Taken(file).words()).collect::<Option<Vec<_>>>()?;
        let mut memory = VmMemory::new(region_bytes);
        memory.base = (has_base == 1).then_some(base);
        memory.counts =
            MapCounts { refused, first_refused: (first_refused, u32::try_from(first_errno).ok()?), outside, lost };
        memory.files = files.into_iter().map(file).collect();
        memory.next_file = next_file;
        memory.unmapping = unmapping;
        let device = FpgaDevice {
            card,
            memory,
            counts: MessageCounts { reads, writes, maps, unmaps, bad },
            guid: [high, low],
            state_bytes,
            state_address,
            config: ConfigSpace::again(config.try_into().ok()?),
            irqs: Default::default(),
            half_written,
            error,
            has_version: version == 1,
        };
        Some((device, asked))
    }
}

/// The counts of messages in a state.
pub fn counts_of(state: &[u8]) -> MessageCounts {
    let mut taken = Taken(state.get(7 * WORD..).unwrap_or_default());
    let [reads, writes, maps, unmaps, bad] = taken.words().unwrap_or_default();
    MessageCounts { reads, writes, maps, unmaps, bad }
}
