pub mod model;
pub mod source;
