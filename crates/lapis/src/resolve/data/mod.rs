//! Descriptors of data: values, pointers, structs and the memory behind them.

pub(crate) mod chained;
pub(crate) mod chains;
pub(crate) mod extents;
pub(crate) mod kinds;
pub(crate) mod members;
pub(crate) mod memory;
pub(crate) mod pointers;
pub(crate) mod told;
pub(crate) mod unpack;
pub(crate) mod values;
