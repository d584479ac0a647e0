//! `aviary run --share-heap`: large allocations of an unmodified program lie in memory that API servers see too.
//!
//! The idea is qCUDA's (section II): buffers that the application allocates are where the other side can use them, so
//! that nothing is copied on the way. Preloaded, this library stands in for the allocator of the C library. Small
//! requests go on to the allocator that would have had them; large ones are cut out of one sealed file in memory.
//! Guest libraries find that file by `aviary_shared_heap` and have their API servers map it.
//!
//! All of this runs inside `malloc` of somebody else's program: no code here allocates, and what cannot be done here
//! is left to the next allocator.

// In a test binary the functions would be the test harness's own allocator.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(test))]
mod exports;
mod extents;
mod fork;
mod heap;
mod lock;
#[cfg(not(test))]
mod next;
