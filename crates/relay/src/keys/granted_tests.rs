use super::*;
use crate::keys::identity::{Days, write_identities, write_key};
use crate::keys::security::{ClientSecurity, Identity, NodeSecurity};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bounds a hang.
const HANG: Duration = Duration::from_secs(60);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aviary-granted-{}-{name}", std::process::id()));
        write_identities(&path, &["127.0.0.1".into()], "alice", Days { node: 1, tenant: 1 }, false).unwrap();
        Folder(path)
    }

    /// Of this guest, whose folder is made.
    fn key(&self, guest: &str) -> String {
        write_key(&self.0.join(guest)).unwrap()
    }

    fn grant(&self, keys: &[&str]) -> PathBuf {
        let path = self.0.join("keys");
        fs::write(&path, keys.iter().map(|key| format!("{key}\n")).collect::<String>()).unwrap();
        path
    }

    fn pin(&self) -> String {
        let node = crate::keys::security::certificates(&self.0.join("node/node.pem")).unwrap();
        fingerprint_of(&node[0]).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// As whom the node sees a guest with this folder; `None`: it is refused.
    fn seen(&self, guest: &ClientSecurity) -> Option<Identity> {
        let node = NodeSecurity::load(&self.0.join("node"), Some(&self.0.join("keys"))).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let soon = Instant::now() + HANG;
        let accepted = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let tls = node.shake_hands(&mut socket, soon).ok()?;
            Some(node.identify(node.by_certificate(tls.as_ref()), b""))
        });
        let shaken = guest.shake_hands(&address, &mut socket, soon);
        drop((shaken, socket));
        accepted.join().unwrap()
    }

    fn guest(&self, name: &str) -> ClientSecurity {
        ClientSecurity::load(Some(&self.0.join(name)), Some(&self.pin()), None).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn only_certificates_that_grants_name_are_let_in_without_the_ca() {
    let folder = Folder::new("named");
    let (own, other) = (folder.key("own"), folder.key("other"));
    let alice = Some(Identity::Tenant("alice".into()));
    assert_eq!(folder.seen(&folder.guest("own")), None, "there is no list");
    folder.grant(&[&own]);
    assert_eq!(folder.seen(&folder.guest("own")), Some(Identity::Tenant(format!("key:{own}"))));
    assert_eq!(folder.seen(&folder.guest("other")), None);
    assert_eq!(folder.seen(&folder.guest("tenant-alice")), alice, "the CA's are let in as before");
    let nobody = ClientSecurity::load(None, Some(&folder.pin()), None).unwrap();
    assert_eq!(folder.seen(&nobody), None, "a certificate is needed");
    folder.grant(&[&other]);
    assert_eq!(folder.seen(&folder.guest("own")), None, "it was taken back");
}

#[test]
fn a_certificate_without_its_key_is_refused() {
    let folder = Folder::new("stolen");
    let own = folder.key("own");
    folder.key("thief");
    folder.grant(&[&own]);
    // What anybody has who has seen a connection: the certificate, and another key.
    fs::copy(folder.0.join("own/tenant.pem"), folder.0.join("thief/tenant.pem")).unwrap();
    let thief = ClientSecurity::load(Some(&folder.0.join("thief")), Some(&folder.pin()), None);
    assert!(thief.is_err() || folder.seen(&thief.unwrap()).is_none());
}

#[test]
fn a_list_that_is_damaged_is_told() {
    let folder = Folder::new("damaged");
    let path = folder.grant(&["00"]);
    let error = NodeSecurity::load(&folder.0.join("node"), Some(&path)).err().unwrap().to_string();
    assert!(error.contains("keys:1: expected the SHA-256"), "{error}");
    assert!(NodeSecurity::load(&folder.0.join("node"), Some(&folder.0.join("none"))).is_ok());
}
