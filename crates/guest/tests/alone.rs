//! Without a server the library logs one line and never blocks. Each case has a process of its own
//! because attempts to attach are counted per process.

use std::io::Write;
use std::process::{Command, Output};
use std::time::Duration;

use aviary_guest::{Api, ApiDescriptor, guard};
use aviary_wire::attach::welcome_status;
use aviary_wire::{WIRE_VERSION, Welcome};

static DESCRIPTOR: ApiDescriptor = ApiDescriptor {
    name: "alone",
    version: "1",
    spec_hash: 0,
    environment: &[],
    functions: &["f"],
    handle_types: &[],
    callbacks: &[],
};
static API: Api = Api::new(&DESCRIPTOR);

/// Runs one of the ignored tests in a child process.
fn child(test: &str, server: Option<&str>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).env_remove("AVIARY_SERVER");
    if let Some(server) = server {
        command.env("AVIARY_SERVER", server);
    }
    command.output().unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().filter(|l| l.starts_with("aviary:")).map(str::to_owned).collect()
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn calls() {
    for _ in 0..1000 {
        assert!(API.call(0).is_err());
    }
    assert!(API.zerocopy_alloc(4096).is_null() && !API.is_handle(77) && API.metadata(77, 1).is_null());
    API.retain(0, 5);
    API.release(0, 5, true);
    API.zerocopy_free(std::ptr::null_mut());
    assert_eq!(API.get_n_bufs(0, 0), 0);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(API.call(0).is_err(), "a later attempt fails as well, silently");
    API.unsupported(0);
    API.unsupported(0);
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn panics() {
    assert_eq!(guard(|| panic!("a mistake in the runtime"), || -7), -7);
    assert_eq!(guard(|| 5, || -7), 5);
}

#[test]
fn no_server_is_one_line_and_no_wait() {
    for (server, complaint) in [
        (None, "AVIARY_SERVER is not set"),
        (Some("tcp:1.2.3.4"), "is not of the form unix:/path"),
        (Some("unix:/nonexistent/node.sock"), "no node at /nonexistent/node.sock"),
    ] {
        let output = child("calls", server);
        assert!(output.status.success(), "{output:?}");
        let lines = lines(&output);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains(complaint), "{lines:?}");
        assert!(lines[1].contains("f is not supported"), "{lines:?}");
    }
}

#[test]
fn hang_up_of_the_node_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let output = child("calls", Some(&format!("unix:{}", path.display())));
    assert!(output.status.success(), "{output:?}");
    assert!(lines(&output)[0].contains("the peer hung up"), "{output:?}");
}

/// The node refuses and hangs up without waiting for the greeting.
#[test]
fn refusal_is_read_after_the_node_has_hung_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let text = "no room".to_owned();
            let status = welcome_status::REFUSED;
            let refusal = Welcome { wire_version: WIRE_VERSION, status, text, ..Welcome::default() };
            let _ = socket.unwrap().write_all(&refusal.to_bytes());
        }
    });
    let output = child("calls", Some(&format!("unix:{}", path.display())));
    assert!(output.status.success(), "{output:?}");
    assert!(lines(&output)[0].contains("refused: no room"), "{output:?}");
}

#[test]
fn panic_in_the_runtime_is_a_lost_call() {
    let output = child("panics", None);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&output).len(), 1);
}
