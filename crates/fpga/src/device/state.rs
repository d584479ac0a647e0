//! What of a device outlives its process: words, which the process that keeps the connection has after each message.

use super::card::Card;
use super::config_space::{CONFIG_BYTES, ConfigSpace};
use super::control_page::HalfWritten;
use super::fpga_device::{FpgaDevice, MessageCounts};
use super::vm_memory::{KnownFile, MapCounts, VmMemory};

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

impl<C: Card> FpgaDevice<C> {
    /// `requests`: those to the card so far.
    pub fn state(&self, requests: u64) -> Vec<u8> {
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
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(self.config.read(0, CONFIG_BYTES as usize));
        for KnownFile { device, inode, length, id } in &self.memory.files {
            [device, inode, length, id].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        }
        bytes
    }

    /// The device of another process again, and the number of requests to its card. `None`: that is no state.
    pub fn again(card: C, state: &[u8]) -> Option<(FpgaDevice<C>, u64)> {
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
        Some((device, requests))
    }
}

/// The counts of messages in a state.
pub fn counts_of(state: &[u8]) -> MessageCounts {
    let mut taken = Taken(state.get(7 * WORD..).unwrap_or_default());
    let [reads, writes, maps, unmaps, bad] = taken.words().unwrap_or_default();
    MessageCounts { reads, writes, maps, unmaps, bad }
}
