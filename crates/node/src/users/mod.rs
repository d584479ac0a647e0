//! User ids of API servers, and the folders that belong to them.

pub(crate) mod claims;
pub(crate) mod descent;
pub(crate) mod homes;
pub(crate) mod removal;
pub(crate) mod server_users;
pub(crate) mod user_database;
