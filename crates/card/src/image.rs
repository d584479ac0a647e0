//! An image in this process: the shared library that `fpga/build` made, behind the C interface of
//! `fpga/simulation/image.h`. The only file of the crate with `unsafe`.

use std::ffi::{CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use libloading::Library;
use thiserror::Error;

use crate::description::ABI;

/// An image cannot be loaded.
#[derive(Debug, Error, displaydoc::Display)]
pub enum ImageError {
    /// {path}: {source}
    Load { path: PathBuf, source: libloading::Error },
    /// {path}: the image has interface version {found}, this program needs {ABI:}; build it again with fpga/build
    Abi { path: PathBuf, found: u32 },
    /// {path}: the image's pins have {found} bytes instead of {expected}; build it again with fpga/build
    Pins { path: PathBuf, found: u32, expected: usize },
    /// {0}: cannot start the image
    Start(PathBuf),
    /// the image was built without waveforms: build it with fpga/build --trace
    NoWaveforms,
    /// {0}: expected a path without zero bytes, in a folder that exists, that can be written
    WaveformFile(PathBuf),
}

/// `struct aviary_pins` of `image.h`.
#[repr(C)]
#[derive(Debug, Clone, Default)]
pub struct Pins {
    // Inputs.
    pub reset: u8,
    pub arready: u8,
    pub awready: u8,
    pub wready: u8,
    pub rvalid: u8,
    pub rlast: u8,
    pub rresp: u8,
    pub bvalid: u8,
    pub bresp: u8,
    pub s_awvalid: u8,
    pub s_wvalid: u8,
    pub s_wstrb: u8,
    pub s_bready: u8,
    pub s_arvalid: u8,
    pub s_rready: u8,
    pub pad0: u8,
    pub rid: u16,
    pub bid: u16,
    pub s_address: u32,
    pub s_wdata: u64,
    pub rdata: [u64; 8],
    // Outputs.
    pub arvalid: u8,
    pub arlen: u8,
    pub awvalid: u8,
    pub awlen: u8,
    pub wvalid: u8,
    pub wlast: u8,
    pub s_awready: u8,
    pub s_wready: u8,
    pub s_bvalid: u8,
    pub s_bresp: u8,
    pub s_arready: u8,
    pub s_rvalid: u8,
    pub busy: u8,
    pub pad1: [u8; 3],
    pub arid: u16,
    pub awid: u16,
    pub pad2: u32,
    pub araddr: u64,
    pub awaddr: u64,
    pub s_rdata: u64,
    pub interrupt: u64,
    pub wdata: [u64; 8],
}

type New = unsafe extern "C" fn() -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Step = unsafe extern "C" fn(*mut c_void, *mut Pins);
type Trace = unsafe extern "C" fn(*mut c_void, *const c_char) -> i32;
type Number = unsafe extern "C" fn() -> u32;

/// A running image.
pub struct Image {
    model: NonNull<c_void>,
    free: Free,
    step: Step,
    trace: Trace,
    // Dropped after `model` was freed: the functions are its.
    _library: Library,
}

impl Image {
    /// Loads an image and starts it, in reset.
    pub fn load(path: &Path) -> Result<Self, ImageError> {
        let load = |source| ImageError::Load { path: path.to_path_buf(), source };
        // SAFETY: the operator's file, named in the node's configuration as one names a program; a library that is no image
        // can do what any program of the node's user can. No guest chooses it.
        let library = unsafe { Library::new(OsStr::new(path)) }.map_err(load)?;
        // SAFETY: as in image.h; a library that is no image has no such symbol.
        let (abi, size, new, free, step, trace) = unsafe {
            (
                *library.get::<Number>(b"aviary_image_abi\0").map_err(load)?,
                *library.get::<Number>(b"aviary_image_pins_size\0").map_err(load)?,
                *library.get::<New>(b"aviary_image_new\0").map_err(load)?,
                *library.get::<Free>(b"aviary_image_free\0").map_err(load)?,
                *library.get::<Step>(b"aviary_image_step\0").map_err(load)?,
                *library.get::<Trace>(b"aviary_image_trace\0").map_err(load)?,
            )
        };
        // SAFETY: takes nothing and returns a number.
        let found = unsafe { abi() };
        if found != ABI {
            return Err(ImageError::Abi { path: path.into(), found });
        }
        // SAFETY: as above.
        let found = unsafe { size() };
        if found as usize != size_of::<Pins>() {
            return Err(ImageError::Pins { path: path.into(), found, expected: size_of::<Pins>() });
        }
        // SAFETY: returns a new model, which `drop` frees once.
        let model = NonNull::new(unsafe { new() }).ok_or_else(|| ImageError::Start(path.into()))?;
        Ok(Self { model, free, step, trace, _library: library })
    }

    /// One clock cycle: the inputs of `pins` are read, its outputs written.
    pub fn step(&mut self, pins: &mut Pins) {
        // SAFETY: the model lives until drop, `pins` has the layout that the image was compiled with (its size was compared),
        // and both are borrowed exclusively. Nothing of a guest's memory is passed.
        unsafe { (self.step)(self.model.as_ptr(), pins) }
    }
}

impl Image {
    /// Writes waveforms into a file from now on, in place of an earlier one; `None`: into none.
    ///
    /// # Errors
    /// The image has no waveforms; the file cannot be made.
    pub fn trace(&mut self, file: Option<&Path>) -> Result<(), ImageError> {
        let name = file.map(|file| {
            // Here, since the image's library ends the process where it cannot.
            let made = std::fs::File::create(file).ok();
            let name = CString::new(file.as_os_str().as_bytes()).ok();
            made.and(name).ok_or_else(|| ImageError::WaveformFile(file.into()))
        });
        let name = name.transpose()?;
        let place = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        // SAFETY: the model lives until drop and is borrowed exclusively; the name ends with a zero and lives during the call,
        // which copies it. No guest chooses it.
        match unsafe { (self.trace)(self.model.as_ptr(), place) } {
            0 => Ok(()),
            _ => Err(ImageError::NoWaveforms),
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed only here.
        unsafe { (self.free)(self.model.as_ptr()) }
    }
}

// SAFETY: a model has no thread of its own and no thread-local state; it is used by one thread at a time, as `step` borrows it
// exclusively.
unsafe impl Send for Image {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_have_the_size_of_image_h() {
        assert_eq!(size_of::<Pins>(), 16 + 2 * 2 + 4 + 8 + 64 + 16 + 8 + 8 * 4 + 64);
    }

    #[test]
    fn library_that_is_no_image_is_refused() {
        assert!(matches!(Image::load(Path::new("/nonexistent/image.so")), Err(ImageError::Load { .. })));
        assert!(matches!(Image::load(Path::new("libc.so.6")), Err(ImageError::Load { .. })));
    }
}
