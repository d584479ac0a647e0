//! Answers to questions: bytes whose type depends on what was asked, so that no specification describes them. The vendor's
//! library may put addresses among them (lists of texts, objects of its own), which mean nothing in the guest, and which
//! a hostile guest should not know. Such an answer is not told.

use crate::api::Reject;
use crate::call::{Buffer, Call, Output, Transfer};
use crate::tables::memory::SessionMemory;

/// Programs map nothing below (`vm.mmap_min_addr`), nor above on the machines that there are.
const ADDRESSES: std::ops::Range<u64> = 0x1_0000..0x7fff_ffff_f000;
const PAGE: u64 = 4096;

impl Call {
    /// An output for an answer: not in the guest's reach before it has been looked at.
    pub fn buffer_answer(&mut self, expected: Option<usize>) -> Result<Buffer, Reject> {
        let buffer = self.buffer_out(expected)?;
        let shared = self.reply.outputs.items.last().is_some_and(|output| matches!(output.place, Transfer::Arena(_)));
        if !shared || buffer.len == 0 {
            return Ok(buffer);
        }
        let copy = self.scratch(buffer.len);
        // SAFETY: both have `len` bytes; the guest may change those that it shares meanwhile, to its own harm only.
        unsafe { std::ptr::copy_nonoverlapping(buffer.ptr, copy, buffer.len) };
        Ok(Buffer { ptr: copy, len: buffer.len })
    }

    /// The next output, an answer `written` by the vendor's function; else as [`Call::reply_out`].
    pub fn reply_answer(&mut self, written: u64, valid: Option<usize>) -> Result<(), Reject> {
        let Some(&Output { buffer, .. }) = self.reply.outputs.items.get(self.reply.outputs.next) else {
            self.reply_out(valid);
            return Ok(());
        };
        let written = written as usize as *const u8;
        if let Some(valid) = valid.filter(|_| !buffer.ptr.is_null() && !written.is_null()) {
            let valid = valid.min(buffer.len);
            // SAFETY: `buffer_answer` gave the vendor's function `len` bytes there, or `force` as many.
            let bytes = unsafe { std::slice::from_raw_parts(written, valid) };
            if tells_addresses(bytes, &self.session.tables.memory) {
                self.session.peer.journal.note(&format!(
                    "{}: the answer has addresses of the API server's process, which the specification does not describe; the call fails",
                    self.function_name()
                ));
                return Err(Reject::Unsupported);
            }
            if !std::ptr::eq(written, buffer.ptr) {
                // SAFETY: the output's own memory, of `len` bytes, which is another one.
                unsafe { std::ptr::copy_nonoverlapping(written, buffer.ptr, valid) };
            }
        }
        self.reply_out(valid);
        Ok(())
    }
}

/// True if at least half of the words that are not 0 are addresses where this process has memory that it does not share with the guest.
/// Texts have words by chance that look like an address: a name's last six letters before its end, where something is mapped.
fn tells_addresses(bytes: &[u8], memory: &SessionMemory) -> bool {
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).filter(|word| *word != 0);
    let (mut addresses, mut all) = (0usize, 0usize);
    for word in words {
        all += 1;
        let private = ADDRESSES.contains(&word) && memory.shared_offset(word as usize as *const u8, 1).is_none();
        addresses += usize::from(private && is_mapped(word));
    }
    addresses > 0 && 2 * addresses >= all
}

fn is_mapped(address: u64) -> bool {
    let page = (address & !(PAGE - 1)) as usize as *mut libc::c_void;
    // SAFETY: advice about a page that may be read soon changes nothing of it; where there is none the kernel says so.
    let outcome = unsafe { libc::madvise(page, PAGE as usize, libc::MADV_WILLNEED) };
    outcome == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_addresses_is_told_from_numbers_and_text() {
        let memory = SessionMemory::none();
        let boxed = Box::new(7u64);
        let address = |p: *const u64| (p.addr() as u64).to_ne_bytes();
        assert!(tells_addresses(&address(&raw const *boxed), &memory));
        assert!(tells_addresses(&[[0; 8], address(c"text".as_ptr().cast())].concat(), &memory));
        let versions =
            [b"\0\0\x40\0cl_khr_spirv_linkonce_odr\0\0\0\0".as_slice(), &address(&raw const *boxed)].concat();
        assert!(!tells_addresses(&versions, &memory), "a text with a word that happens to be an address");
        let function = tells_addresses as *const () as usize as u64;
        assert!(tells_addresses(&function.to_ne_bytes(), &memory));
        assert!(!tells_addresses(b"a text of some words, and more of it", &memory));
        for number in [0, 1, 4096, 1 << 30, u64::MAX, 1 << 63, 0x0102_0304_0506_0708] {
            assert!(!tells_addresses(&u64::to_ne_bytes(number), &memory), "{number:#x}");
        }
        assert!(!tells_addresses(&address(&raw const *boxed)[..7], &memory), "less than an address");
    }
}
