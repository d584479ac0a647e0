//! `aviary run --share-heap`: large allocations of an unmodified program lie in memory that API
//! servers map, too.
//!
//! The idea is qCUDA's (section II): buffers that the application allocates lie where the API
//! server can use them, so that they are not copied on the way. This preloaded library replaces the
//! allocator of the C library. Small requests go to the next allocator, which would have served
//! them; large ones are cut out of one sealed file in memory. Guest libraries find the file through
//! `aviary_shared_heap` and have their API servers map it.
//!
//! The code runs inside `malloc` of an arbitrary program: it never allocates, and a request that it
//! cannot serve goes to the next allocator.

// In a test binary the functions would replace the test harness's own allocator.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(test))]
mod exports;
mod extents;
mod fork;
mod heap;
mod lock;
#[cfg(not(test))]
mod next;
