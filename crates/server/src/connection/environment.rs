//! The variables that an application has set for the vendor's library.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use aviary_wire::Hello;

use crate::api::ApiDescriptor;

/// Sets what the guest has set of the variables that the specification names, before the vendor's library looks at them.
/// On a private node (`private`), whose environment is the program's own, the program has the last word. On another one
/// the operator has it: a variable that is set there stays.
pub(crate) fn adopt(api: &ApiDescriptor, hello: &Hello, private: bool) {
    for (name, value) in api.environment.iter().zip(&hello.environment) {
        let here = std::env::var_os(name);
        let value = value.as_deref().map(OsStr::from_bytes);
        match decided(here.as_deref(), value, private) {
            Decision::Keep => {}
            // SAFETY: names and values have no zero in them (the names are checked by the specification compiler, the
            // values when the greeting is decoded). Threads of other APIs that read the environment at this moment use
            // the C library's functions, as this does.
            Decision::Set(value) => unsafe { std::env::set_var(name, value) },
            // SAFETY: as above.
            Decision::Remove => unsafe { std::env::remove_var(name) },
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Decision<'a> {
    Keep,
    Set(&'a OsStr),
    Remove,
}

fn decided<'a>(here: Option<&OsStr>, guests: Option<&'a OsStr>, private: bool) -> Decision<'a> {
    match (here, guests) {
        (here, guests) if here == guests => Decision::Keep,
        (Some(_), _) if !private => Decision::Keep,
        (_, Some(value)) => Decision::Set(value),
        (_, None) => Decision::Remove,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_the_last_word_on_shared_nodes_and_programs_on_their_own() {
        let (one, two) = (OsStr::new("1"), OsStr::new("2"));
        for private in [false, true] {
            assert_eq!(decided(None, None, private), Decision::Keep);
            assert_eq!(decided(Some(one), Some(one), private), Decision::Keep);
            assert_eq!(decided(None, Some(one), private), Decision::Set(one));
        }
        assert_eq!(decided(Some(one), Some(two), false), Decision::Keep);
        assert_eq!(decided(Some(one), None, false), Decision::Keep);
        assert_eq!(decided(Some(one), Some(two), true), Decision::Set(two));
        assert_eq!(decided(Some(one), None, true), Decision::Remove);
    }
}
