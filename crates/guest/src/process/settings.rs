//! Settings that the environment makes.

/// True if valgrind runs the process, which then has a preloaded library of its.
pub(crate) fn under_valgrind() -> bool {
    std::env::var("LD_PRELOAD").is_ok_and(|list| list.contains("/vgpreload_"))
}

/// True if the variable is set to anything but 0.
pub(crate) fn flag_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|v| !v.is_empty() && v != "0")
}
