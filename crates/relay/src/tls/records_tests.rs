use super::*;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::{
    ClientConfig, ClientConnection, Connection, ConnectionTrafficSecrets, RootCertStore, ServerConfig,
    ServerConnection, SupportedCipherSuite,
};

use crate::tls::handshake::{Secured, as_client, as_server};
use crate::tls::keys::Renewing;
use crate::tls::stream::split;

const SUITES: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

fn configurations(suite: SupportedCipherSuite) -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let certificate: CertificateDer<'static> = certificate.der().clone();
    let provider = Arc::new(CryptoProvider { cipher_suites: vec![suite], ..default_provider() });
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let versions = &[&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions).unwrap();
    let mut client = client.with_root_certificates(roots).with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut server = server.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    (client.enable_secret_extraction, server.enable_secret_extraction) = (true, true);
    (client.into(), server.into())
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

/// Bounds a hang.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + (at >> 8) * 13) as u8).collect()
}

/// A peer with plain rustls: says what it was told, from the first byte on, until that ends. It changes its key each time
/// that it has read so many bytes.
fn echo(mut tls: Connection, mut socket: TcpStream, first: &'static [u8]) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        // Goes out together with the end of the handshake, as far as the protocol allows it.
        tls.writer().write_all(first).unwrap();
        let (mut all, mut bytes, mut since) = (0, vec![0; 50_000], 0);
        loop {
            while tls.wants_write() {
                tls.write_tls(&mut socket).unwrap();
            }
            match tls.reader().read(&mut bytes) {
                Ok(0) => return all,
                Ok(n) => {
                    (all, since) = (all + n, since + n);
                    tls.writer().write_all(&bytes[..n]).unwrap();
                    if since > 300_000 {
                        since = 0;
                        tls.refresh_traffic_keys().unwrap();
                    }
                }
                Err(_) => {
                    assert!(tls.read_tls(&mut socket).unwrap() > 0, "cut off");
                    tls.process_new_packets().unwrap();
                }
            }
        }
    })
}

/// Sends as much, in pieces of many lengths, and expects all of it back behind `first`.
fn converse(secured: Secured, socket: TcpStream, first: &[u8], peer: JoinHandle<usize>) {
    let (mut reader, mut writer) = split(socket, Some(secured)).unwrap();
    let all = content(2_000_000);
    let mut expected = first.to_vec();
    expected.extend_from_slice(&all);
    let sending = std::thread::spawn(move || {
        let (mut at, mut length) = (0, 1);
        while at < all.len() {
            let end = (at + length).min(all.len());
            writer.write(&all[at..end]).unwrap();
            (at, length) = (end, length * 3 % 260_001 + 1);
        }
        (writer, all.len())
    });
    let mut back = Vec::new();
    while back.len() < expected.len() {
        assert!(reader.read(&mut back).unwrap() > 0);
    }
    assert!(back == expected);
    let (mut writer, sent) = sending.join().unwrap();
    writer.end();
    assert_eq!(peer.join().unwrap(), sent);
}

#[test]
fn a_server_of_plain_rustls_understands_every_byte() {
    for suite in SUITES {
        let (client, server) = configurations(suite);
        let (mut ours, theirs) = sockets();
        // It sends tickets, too, which nobody wants.
        assert!(server.send_tls13_tickets > 0);
        let peer = echo(ServerConnection::new(server).unwrap().into(), theirs, b"");
        let connection = UnbufferedClientConnection::new(client, name()).unwrap();
        let secured = as_client(connection, &mut ours, soon()).unwrap();
        assert!(secured.certificate.is_some());
        converse(secured, ours, b"", peer);
    }
}

#[test]
fn a_client_of_plain_rustls_is_understood_from_the_byte_behind_its_handshake_on() {
    for suite in SUITES {
        let (client, server) = configurations(suite);
        let mut server = ServerConfig::clone(&server);
        server.send_tls13_tickets = 0;
        let (theirs, mut ours) = sockets();
        let first = b"in the flight of the last message of the handshake";
        let peer = echo(ClientConnection::new(client, name()).unwrap().into(), theirs, first);
        let secured = as_server(UnbufferedServerConnection::new(server.into()).unwrap(), &mut ours, soon()).unwrap();
        converse(secured, ours, first, peer);
    }
}

#[test]
fn what_is_no_handshake_is_told_apart() {
    let (client, server) = configurations(SUITES[0]);
    let (mut ours, mut theirs) = sockets();
    theirs.write_all(b"this node does not speak TLS\n").unwrap();
    let connection = UnbufferedClientConnection::new(client.clone(), name()).unwrap();
    let error = as_client(connection, &mut ours, soon()).err().unwrap();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    assert!(matches!(inner, Some(Error::InvalidMessage(_))), "{error}");
    // A client that trusts nobody says so.
    let (mut ours, mut theirs) = sockets();
    let strict = ClientConfig::builder_with_provider(client.crypto_provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let refusing = std::thread::spawn(move || {
        as_client(UnbufferedClientConnection::new(strict.into(), name()).unwrap(), &mut theirs, soon()).err().unwrap();
    });
    let error = as_server(UnbufferedServerConnection::new(server).unwrap(), &mut ours, soon()).err().unwrap();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    assert!(matches!(inner, Some(Error::AlertReceived(AlertDescription::UnknownCA))), "{error}");
    refusing.join().unwrap();
}

/// Derives the same key again and again.
struct Same;

fn secrets(sequence: u64) -> (u64, ConnectionTrafficSecrets) {
    (sequence, ConnectionTrafficSecrets::Aes256Gcm { key: [7; 32].into(), iv: [9; 12].into() })
}

impl Renewing for Same {
    fn next_to_send(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        Ok(secrets(0))
    }

    fn next_to_receive(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        Ok(secrets(0))
    }
}

/// Both ends of one direction, at this record.
fn ends(sequence: u64, is_server: bool) -> (Sealer, Opener, Renewal) {
    let renewal = Renewal::new(Box::new(Same));
    let sealer = Sealer::new(secrets(sequence), Renewal::new(Box::new(Same))).unwrap();
    (sealer, Opener::new(secrets(sequence), renewal.clone(), is_server).unwrap(), renewal)
}

/// What these records hold, and the mistake that ended them.
fn opened(opener: &mut Opener, mut records: Vec<u8>) -> (Vec<u8>, Option<Error>) {
    let (mut all, mut at) = (Vec::new(), 0);
    loop {
        let length = match Opener::first(&records[at..]) {
            Ok(Some(length)) => length,
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error)),
        };
        match opener.open(&mut records[at..at + length]) {
            Ok(Opened::Data(data)) => all.extend_from_slice(data),
            Ok(Opened::Nothing) => {}
            Ok(Opened::Closed) => return (all, None),
            Err(error) => return (all, Some(error)),
        }
        at += length;
    }
}

#[test]
fn keys_change_before_they_are_worn_out() {
    let (mut sealer, mut opener, _) = ends(MOST_RECORDS - 2, true);
    let (data, mut records) = (content(5 * MOST_DATA), Vec::new());
    sealer.seal(&data, &mut records).unwrap();
    assert_eq!(opened(&mut opener, records), (data, None));
    assert_eq!((sealer.key.records(), opener.key.records()), (3, 3), "two with the old one, then the update");
}

#[test]
fn a_peer_that_asks_for_another_key_gets_it_before_the_next_data() {
    let (mut sealer, mut opener, renewal) = ends(0, true);
    let mut records = Vec::new();
    sealer.record(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1], &mut records).unwrap();
    sealer.key = Key::new(secrets(0)).unwrap();
    assert_eq!(opened(&mut opener, records), (Vec::new(), None));
    let mut answer = Sealer::new(secrets(5), renewal.clone()).unwrap();
    let mut records = Vec::new();
    answer.seal(b"x", &mut records).unwrap();
    assert_eq!((answer.key.records(), renewal.take_owed()), (1, false));
    assert_eq!(opened(&mut ends(5, false).1, records), (b"x".to_vec(), None));
}

#[test]
fn records_that_the_protocol_does_not_have_end_the_connection() {
    let update = [KEY_UPDATE, 0, 0, 1, 0];
    let ticket = [NEW_SESSION_TICKET, 0, 0, 2, 9, 9];
    let behind = [&update[..], &update[..]].concat();
    let cases: [(u8, &[u8], bool); 12] = [
        (HANDSHAKE, &update, true),
        (HANDSHAKE, &behind, false),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2], false),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 0], false),
        (HANDSHAKE, &[], false),
        (HANDSHAKE, &[1, 0, 0, 0], false),
        (HANDSHAKE, &[NEW_SESSION_TICKET, 1, 0, 0], false),
        (ALERT, &[2, 40], false),
        (ALERT, &[2], false),
        (CHANGE_CIPHER_SPEC, &[1], false),
        (0, &[], false),
        (99, b"?", false),
    ];
    for (kind, data, good) in cases {
        let (mut sealer, mut opener, _) = ends(0, true);
        let mut records = Vec::new();
        sealer.record(kind, data, &mut records).unwrap();
        assert_eq!(opened(&mut opener, records).1.is_none(), good, "{kind} {data:?}");
    }
    for (is_server, good) in [(true, false), (false, true)] {
        let (mut sealer, mut opener, _) = ends(0, is_server);
        let mut records = Vec::new();
        // In two parts, of which no data may lie between.
        sealer.record(HANDSHAKE, &ticket[..3], &mut records).unwrap();
        sealer.record(HANDSHAKE, &ticket[3..], &mut records).unwrap();
        assert_eq!(opened(&mut opener, records).1.is_none(), good);
    }
    let (mut sealer, mut opener, _) = ends(0, false);
    let mut records = Vec::new();
    sealer.record(HANDSHAKE, &ticket[..3], &mut records).unwrap();
    sealer.record(DATA, b"x", &mut records).unwrap();
    assert!(opened(&mut opener, records).1.is_some());
    // More data than a record may have.
    let (mut sealer, mut opener, _) = ends(0, false);
    let mut records = Vec::new();
    sealer.record(DATA, &vec![1; MOST_DATA + 1], &mut records).unwrap();
    assert_eq!(opened(&mut opener, records).1, Some(Error::PeerSentOversizedRecord));
    assert!(Opener::first(&[DATA, 3, 3, 0xff, 0xff]).is_err() && Opener::first(&[ALERT, 3, 3, 0, 2]).is_err());
}

proptest! {
    /// A record that was changed, repeated, left out or cut in half: nothing behind it is believed, and of it nothing.
    #[test]
    fn nothing_is_used_of_a_stream_that_was_tampered_with(
        lengths in prop::collection::vec(0usize..40_000, 1..6),
        at in any::<prop::sample::Index>(),
        change in 0u8..4,
        bit in 0u8..8,
    ) {
        let (mut sealer, mut opener, _) = ends(0, true);
        let (mut records, mut whole) = (Vec::new(), Vec::new());
        for length in lengths {
            let data = content(length);
            sealer.seal(&data, &mut records).unwrap();
            whole.extend_from_slice(&data);
        }
        let mut starts = vec![0];
        while let Some(length) = Opener::first(&records[*starts.last().unwrap()..]).unwrap() {
            starts.push(starts.last().unwrap() + length);
        }
        prop_assume!(starts.len() > 1);
        let n = at.index(starts.len() - 1);
        let (start, end) = (starts[n], starts[n + 1]);
        let mut tampered = records.clone();
        match change {
            0 => tampered[start + at.index(end - start)] ^= 1 << bit,
            1 => drop(tampered.splice(end..end, records[start..end].to_vec())),
            2 => drop(tampered.drain(start..end)),
            _ => drop(tampered.drain(start + at.index(end - start)..end)),
        }
        let (data, _) = opened(&mut opener, tampered);
        prop_assert!(whole.starts_with(&data));
        let most = (n + usize::from(change == 1)) * MOST_DATA;
        prop_assert!(data.len() <= most, "{} of the {most} before the change", data.len());
    }
}
