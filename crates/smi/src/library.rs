//! NVML as this program calls it: functions of a loaded library, by name.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    fmt, mem, ptr,
};

const LIBRARY: &CStr = c"libnvidia-ml.so.1";
/// Bytes of the longest text that a function is asked for.
const TEXT_BYTES: usize = 256;
/// Elements of the longest list that is read; more are cut off.
const MOST_ELEMENTS: u32 = 4096;

/// A result of NVML that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    pub const INVALID_ARGUMENT: Code = Code(2);
    pub const NOT_SUPPORTED: Code = Code(3);
    pub const NO_PERMISSION: Code = Code(4);
    pub const NOT_FOUND: Code = Code(6);
    pub const INSUFFICIENT_SIZE: Code = Code(7);
    pub const DRIVER_NOT_LOADED: Code = Code(9);
    pub const FUNCTION_NOT_FOUND: Code = Code(13);
    pub const GPU_IS_LOST: Code = Code(15);
    pub const RESET_REQUIRED: Code = Code(16);
    pub const LIBRARY_MISMATCH: Code = Code(18);
    pub const VERSION_MISMATCH: Code = Code(25);
    pub const NOT_READY: Code = Code(27);

    /// The function or the feature is not there, or not yet.
    pub fn is_missing(self) -> bool {
        matches!(self, Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND | Code::VERSION_MISMATCH | Code::NOT_READY)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Code::INVALID_ARGUMENT => "Invalid Argument",
            Code::NOT_SUPPORTED => "Not Supported",
            Code::NO_PERMISSION => "Insufficient Permissions",
            Code::NOT_FOUND => "Not Found",
            Code::DRIVER_NOT_LOADED => "Driver Not Loaded",
            Code::GPU_IS_LOST => "GPU is lost",
            Code::RESET_REQUIRED => "GPU requires reset",
            _ => "Unknown Error",
        })
    }
}

pub type Answer<T> = Result<T, Code>;

/// A device, as NVML names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Handle(pub *mut c_void);

/// Values that NVML writes: any bytes are a valid value.
///
/// # Safety
/// The type is `repr(C)`, as the function's header declares it, and every pattern of bytes is one of its values.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: numbers and pointers that are not followed.
        unsafe impl Plain for $type {}
    )* };
}
plain!(u8, u32, i32, u64, i64, Handle);
// SAFETY: an array of such values.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// All bytes zero.
pub fn zeroed<T: Plain>() -> T {
    // SAFETY: every pattern of bytes is a value of a plain type.
    unsafe { mem::zeroed() }
}

/// Finds functions by their names. Tests have functions of their own.
pub struct Library {
    find: Box<dyn Fn(&CStr) -> *mut c_void>,
}

/// An argument before the results: a number, or one of the two pointers that functions take.
pub type Number = usize;

type Three = unsafe extern "C" fn(Number, Number, Number) -> u32;
type Six = unsafe extern "C" fn(Number, Number, Number, Number, Number, Number) -> u32;

impl Library {
    /// `None`: the machine has none.
    pub fn open() -> Option<Library> {
        // SAFETY: the name is a string; initializers of the library are NVIDIA's or Aviary's.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        // SAFETY: the handle is never closed.
        let find = move |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
        (!library.is_null()).then(|| Library { find: Box::new(find) })
    }

    #[cfg(test)]
    pub fn of(find: impl Fn(&CStr) -> *mut c_void + 'static) -> Library {
        Library { find: Box::new(find) }
    }

    /// Calls with up to six arguments that are numbers or addresses, each of which fits a register.
    fn call(&self, name: &str, arguments: &[Number]) -> Answer<()> {
        let name = CString::new(name).map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        let function = (self.find)(&name);
        if function.is_null() {
            return Err(Code::FUNCTION_NOT_FOUND);
        }
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        let [a, b, c, d, e, f] = all;
        let code = if arguments.len() <= 3 {
            // SAFETY: a function of NVML that takes at most three integers or pointers, which the callers below give
            // it as its header asks; more registers than it reads do no harm.
            unsafe { mem::transmute::<*mut c_void, Three>(function)(a, b, c) }
        } else {
            // SAFETY: as above, of at most six.
            unsafe { mem::transmute::<*mut c_void, Six>(function)(a, b, c, d, e, f) }
        };
        if code == 0 { Ok(()) } else { Err(Code(code)) }
    }

    /// A function without results, of these arguments.
    pub fn run(&self, name: &str, arguments: &[Number]) -> Answer<()> {
        self.call(name, arguments)
    }

    /// The value that a function writes to the pointer that is its last argument. `start` is there before.
    pub fn fill<T: Plain>(&self, name: &str, arguments: &[Number], start: T) -> Answer<T> {
        let mut value = start;
        let mut all = arguments.to_vec();
        all.push(ptr::from_mut(&mut value) as Number);
        self.call(name, &all).map(|()| value)
    }

    pub fn get<T: Plain>(&self, name: &str, arguments: &[Number]) -> Answer<T> {
        self.fill(name, arguments, zeroed())
    }

    /// The values that a function writes to the two pointers that are its last arguments.
    pub fn pair<A: Plain, B: Plain>(&self, name: &str, arguments: &[Number]) -> Answer<(A, B)> {
        let (mut first, mut second) = (zeroed::<A>(), zeroed::<B>());
        let mut all = arguments.to_vec();
        all.extend([ptr::from_mut(&mut first) as Number, ptr::from_mut(&mut second) as Number]);
        self.call(name, &all).map(|()| (first, second))
    }

    /// Four numbers.
    pub fn four(&self, name: &str, arguments: &[Number]) -> Answer<[u32; 4]> {
        let mut values = [0u32; 4];
        let mut all = arguments.to_vec();
        all.extend(values.iter_mut().map(|value| ptr::from_mut(value) as Number));
        self.call(name, &all).map(|()| values)
    }

    /// A text, whose room is the last argument.
    pub fn text(&self, name: &str, arguments: &[Number]) -> Answer<String> {
        self.text_of(name, arguments, &[TEXT_BYTES])
    }

    /// A text with arguments behind its address.
    pub fn text_of(&self, name: &str, before: &[Number], after: &[Number]) -> Answer<String> {
        let mut bytes = [0u8; TEXT_BYTES];
        let mut all = before.to_vec();
        all.push(bytes.as_mut_ptr() as Number);
        all.extend(after);
        self.call(name, &all)?;
        Ok(text_of(&bytes))
    }

    /// A list whose function takes the number of elements and their address last; asked twice, as it may grow.
    pub fn list<T: Plain>(&self, name: &str, arguments: &[Number]) -> Answer<Vec<T>> {
        let mut count = 0u32;
        let mut values = Vec::<T>::new();
        loop {
            let mut all = arguments.to_vec();
            let address = if values.is_empty() { 0 } else { values.as_mut_ptr() as Number };
            all.extend([ptr::from_mut(&mut count) as Number, address]);
            match self.call(name, &all) {
                Ok(()) if count as usize <= values.len() => {
                    values.truncate(count as usize);
                    return Ok(values);
                }
                Ok(()) | Err(Code::INSUFFICIENT_SIZE) if count as usize > values.len() && count <= MOST_ELEMENTS => {
                    // A few more than there were.
                    count = (count + 8).min(MOST_ELEMENTS + 8);
                    values = vec![zeroed(); count as usize];
                }
                Ok(()) => return Err(Code::INSUFFICIENT_SIZE),
                Err(code) => return Err(code),
            }
        }
    }

    /// A list that has at most `room` elements, for functions that do not tell its length, in the order (count, elements).
    pub fn list_of<T: Plain>(&self, name: &str, arguments: &[Number], room: u32) -> Answer<Vec<T>> {
        let mut count = room;
        let mut values = vec![zeroed::<T>(); room as usize];
        let mut all = arguments.to_vec();
        all.extend([ptr::from_mut(&mut count) as Number, values.as_mut_ptr() as Number]);
        self.call(name, &all)?;
        values.truncate(count as usize);
        Ok(values)
    }

    /// A list for which the caller has `room` elements, in the order (elements, count).
    pub fn list_within<T: Plain>(
        &self,
        name: &str,
        arguments: &[Number],
        room: u32,
        after: &[Number],
    ) -> Answer<Vec<T>> {
        let mut count = room;
        let mut values = vec![zeroed::<T>(); room as usize];
        let mut all = arguments.to_vec();
        all.extend([values.as_mut_ptr() as Number, ptr::from_mut(&mut count) as Number]);
        all.extend(after);
        self.call(name, &all)?;
        values.truncate(count as usize);
        Ok(values)
    }
}

/// Up to the first NUL.
pub fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The address of a text for a function that reads it.
pub fn address(text: &CStr) -> Number {
    text.as_ptr().cast::<c_char>() as Number
}
