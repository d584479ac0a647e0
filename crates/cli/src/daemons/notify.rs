//! What `aviary serve` tells the service manager that started it (`Type=notify` of systemd): that it serves, that it ends. The
//! manager waits for the first before it starts what comes after the node. Without a manager nothing is sent.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// The variable that names the manager's socket: a path, or `@` and an abstract name.
const SOCKET: &str = "NOTIFY_SOCKET";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The node accepts guests; after an upgrade again.
    Ready,
    Stopping,
}

/// Tells it, or says on standard error why it could not: the manager then ends the node when its patience does.
pub fn tell(word: Word) {
    let socket = std::env::var_os(SOCKET).filter(|name| !name.is_empty());
    if let Some(Err(error)) = socket.map(|name| send(&name, word)) {
        eprintln!("aviary: warning: {SOCKET}: {error}: the service manager does not know that this node is {word:?}");
    }
}

fn send(name: &OsStr, word: Word) -> io::Result<()> {
    let text = match word {
        Word::Ready => "READY=1",
        Word::Stopping => "STOPPING=1",
    };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager whose queue is full is not waited for.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(text.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;

    fn heard(manager: &UnixDatagram) -> String {
        let mut text = [0; 64];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    }

    #[test]
    fn manager_hears_both_words_at_a_path_and_at_an_abstract_name() {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().join("notify");
        let abstract_name = format!("aviary-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let managers = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&address).unwrap(), format!("@{abstract_name}").into()),
        ];
        for (manager, name) in &managers {
            send(name, Word::Ready).unwrap();
            send(name, Word::Stopping).unwrap();
            assert_eq!([heard(manager), heard(manager)], ["READY=1", "STOPPING=1"]);
        }
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error_and_no_wait() {
        assert!(send(OsStr::new("/no/such/socket"), Word::Ready).is_err());
    }
}
