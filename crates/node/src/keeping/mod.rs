//! Sessions of other machines that outlive their node (`aviary serve --keep`): at its end their states go to files, and the
//! next node goes on with them.
//!
//! - [`leave`]: how the node ends. Each program's gateways *hold* (they give their connections up), its API server writes the
//!   states of its sessions as for a park, its gateways *save* what they have, and then the files are written.
//! - [`back`]: how the next node begins. Each file becomes gateways and an API server that watches for calls, as of a parked
//!   program, before anybody can connect.
//! - [`progress`]: how far it has come.
//! - [`folder`]: the folder, its key, and [`file`]: one program's file. A file is signed with the key of one stop, which the next
//!   start takes away: a file counts once.
//!
//! What is in a file comes from API servers and gateways, which their guests may have taken over: the node copies it and looks
//! into none of it but what it has written itself.

pub mod back;
pub mod file;
pub mod folder;
pub mod image;
pub mod leave;
pub mod progress;
