//! The module of the tests' API, as a shared library that an API server process loads.
#![allow(dead_code)]

#[path = "../tests/support/api.rs"]
mod api;
#[path = "../tests/support/racing.rs"]
mod racing;

aviary_server::export_module!(api::API);
