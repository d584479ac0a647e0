//! Virtual machines at a node: this test program plays the device and the API servers, the tests are the VMMs.

use aviary_control::{FromServer, Patience, Received, SessionDescriptors, ToServer, receive};
use aviary_node::{
    ApiServerCommand, Level, Node, NodeConfig, PrivateDir, Reload, Settings, Tenants, VmDeviceCommand, VmSettings,
};
use aviary_wire::Origin;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, socket};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const ROLE: &str = "AVIARY_TEST_VM_ROLE";
const SOON: Duration = Duration::from_secs(10);

fn argument(name: &str) -> Option<String> {
    env::args().skip_while(|argument| argument != name).nth(1)
}

/// Not a test: the API server, which greets its guests with its process id and waits for the end of the last.
#[test]
fn fake_api_server() {
    if env::var(ROLE).as_deref() != Ok("api-server") {
        return;
    }
    let number = env::args().next_back().and_then(|text| text.parse().ok()).expect("a descriptor number");
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let control = pidfd_getfd(own, number, PidfdGetfdFlags::empty()).unwrap();
    let guests = Arc::new(AtomicUsize::new(0));
    loop {
        poll(&mut [PollFd::new(&control, PollFlags::IN)], None).unwrap();
        let (assignment, descriptors) = match receive(control.as_fd()) {
            Received::Message(ToServer::Assign(assignment), descriptors) => (assignment, descriptors),
            _ => std::process::exit(0),
        };
        let mut guest = UnixStream::from(SessionDescriptors::of(descriptors).expect("descriptors").guest);
        let started = FromServer::Started { session: assignment.session, api: "fake".into(), spec_hash: 0 };
        aviary_control::send(control.as_fd(), &started, &[], Patience::Waits).unwrap();
        writeln!(guest, "{} {}", std::process::id(), assignment.guest).unwrap();
        guests.fetch_add(1, Ordering::SeqCst);
        let left = guests.clone();
        std::thread::spawn(move || {
            let _ = guest.read(&mut [0]);
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                std::process::exit(0);
            }
        });
    }
}

/// Not a test: the device. For each line that the VMM writes, `PID STARTED PROGRAM`, it attaches; it answers what it was greeted with.
#[test]
fn fake_device() {
    let (Some(node), Some(name)) = (argument("--node"), argument("--name")) else { return };
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let (vmm, _) = loop {
        match listener.accept() {
            Ok(accepted) => break accepted,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    vmm.set_nonblocking(false).unwrap();
    let (mut out, mut sessions) = (vmm.try_clone().unwrap(), Vec::new());
    writeln!(out, "device {} {name}", std::process::id()).unwrap();
    for line in BufReader::new(vmm).lines().map_while(Result::ok) {
        if line == "fail" {
            std::process::exit(1);
        }
        let mut words = line.splitn(3, ' ');
        let (pid, started, program) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let attached = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let origin = Origin { pid: pid.parse().unwrap(), started: started.parse().unwrap(), program: program.into() };
        let own = origin.to_name(std::process::id(), sessions.len() as u64);
        bind(&attached, &SocketAddrUnix::new_abstract_name(&own).unwrap()).unwrap();
        connect(&attached, &SocketAddrUnix::new(Path::new(&node)).unwrap()).unwrap();
        let mut greeting = String::new();
        let mut attached = BufReader::new(UnixStream::from(attached));
        let _ = attached.read_line(&mut greeting);
        let greeting = if greeting.ends_with('\n') { greeting } else { format!("refused {greeting:?}\n") };
        out.write_all(greeting.as_bytes()).unwrap();
        sessions.push(attached);
    }
    std::process::exit(0);
}

struct Vmm(BufReader<UnixStream>);

impl Vmm {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Vmm(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}").unwrap();
    }

    /// Process id of the device.
    fn device(&mut self, name: &str) -> u32 {
        let line = self.line();
        let (pid, named) = line.strip_prefix("device ").unwrap().split_once(' ').unwrap();
        assert_eq!(named, name);
        pid.parse().unwrap()
    }

    /// Process id of the API server that a process of the VM gets, and the one that it is told the guest has.
    fn attach(&mut self, pid: u32, started: u64, program: &str) -> (u32, u32) {
        self.say(&format!("{pid} {started} {program}"));
        let line = self.line();
        let (server, guest) = line.split_once(' ').unwrap();
        (server.parse().unwrap_or_else(|_| panic!("{line}")), guest.parse().unwrap())
    }
}

struct Fixture {
    node: Option<Node>,
    /// The configuration when it is read again.
    vms: Arc<Mutex<Vec<VmSettings>>>,
    directory: PrivateDir,
}

impl Fixture {
    fn new(vms: &[(&str, &str)]) -> Self {
        let own = |role: &str, more: &[&str]| -> Vec<OsString> {
            [role, "--exact", "--nocapture"].iter().chain(more).map(OsString::from).collect()
        };
        let program = env::current_exe().unwrap();
        let environment = vec![(ROLE.into(), "api-server".into())];
        let server = ApiServerCommand {
            program: program.clone(),
            arguments: own("vms::fake_api_server", &[]),
            environment,
            fixed_addresses: false,
        };
        let directory = PrivateDir::create().unwrap();
        let mut config = NodeConfig::new(PathBuf::new(), server);
        config.log = Level::Debug;
        config.sessions_per_user = 2;
        config.vm_device = VmDeviceCommand { program, arguments: own("vms::fake_device", &["--"]) };
        config.vms = vms.iter().map(|vm| settings(&directory, vm)).collect();
        let vms = Arc::new(Mutex::new(config.vms.clone()));
        let read = vms.clone();
        config.reload = Some(Reload::new(move || {
            let vms = read.lock().unwrap().clone();
            let (tenants, notes) = (Tenants::default(), Vec::new());
            Ok(Settings {
                tenants,
                most_tenants: 1024,
                sessions_per_user: 2,
                attach_rate: 0,
                devices: None,
                vms,
                cards: Vec::new(),
                fpga_devices: Vec::new(),
                notes,
            })
        }));
        let node = Some(Node::start_private(&directory, config).unwrap());
        Self { node, vms, directory }
    }

    fn reload(&self, vms: &[(&str, &str)]) -> Vec<String> {
        *self.vms.lock().unwrap() = vms.iter().map(|vm| settings(&self.directory, vm)).collect();
        self.node().reload().unwrap()
    }

    fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    fn socket(&self, vm: &str) -> PathBuf {
        self.directory.path().join(vm)
    }
}

fn settings(directory: &PrivateDir, (name, tenant): &(&str, &str)) -> VmSettings {
    VmSettings { name: (*name).into(), socket: directory.path().join(name), tenant: (*tenant).into(), mode: 0o640 }
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_gone(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

#[test]
fn a_vm_is_a_tenant_and_each_of_its_processes_has_an_api_server() {
    let fixture = Fixture::new(&[("one", "alice"), ("two", "bob")]);
    let (mut one, mut two) = (Vmm::connect(&fixture.socket("one")), Vmm::connect(&fixture.socket("two")));
    let devices = (one.device("one"), two.device("two"));
    assert_ne!(devices.0, devices.1);
    let (first, second, other) = (one.attach(70, 1, "a b"), one.attach(70, 2, "x/y"), two.attach(70, 1, ""));
    assert!(first.0 != second.0 && first.0 != other.0 && second.0 != other.0, "a shared API server");
    assert_eq!(first.1, 70);
    let sessions = fixture.node().report().sessions;
    let told: Vec<_> = sessions
        .iter()
        .map(|session| {
            let (vm, tenant) = (session.vm.as_deref().unwrap(), session.tenant.as_str());
            (vm, tenant, session.guest, session.program.as_str())
        })
        .collect();
    assert_eq!(told, [("one", "alice", 70, "a b"), ("one", "alice", 70, "x/y"), ("two", "bob", 70, "")]);
    // As many as a user may have, of this VM.
    one.say("71 1 z");
    assert!(one.line().starts_with("refused"));
    two.attach(71, 1, "more");
}

#[test]
fn connections_of_one_process_in_a_vm_share_an_api_server() {
    let fixture = Fixture::new(&[("one", "one")]);
    let mut one = Vmm::connect(&fixture.socket("one"));
    one.device("one");
    let (first, second) = (one.attach(70, 5, "a"), one.attach(70, 5, "a"));
    assert_eq!(first.0, second.0);
    // A process that the driver does not tell apart from others is not joined.
    let fixture = Fixture::new(&[("one", "one")]);
    let mut one = Vmm::connect(&fixture.socket("one"));
    one.device("one");
    let (first, second) = (one.attach(70, 0, "a"), one.attach(70, 0, "a"));
    assert_ne!(first.0, second.0);
}

#[test]
fn a_device_ends_with_its_vm_and_the_next_one_gets_another() {
    let fixture = Fixture::new(&[("one", "one")]);
    let mut vmm = Vmm::connect(&fixture.socket("one"));
    let first = vmm.device("one");
    vmm.attach(1, 1, "x");
    // Waits until the first one has gone.
    let mut next = Vmm::connect(&fixture.socket("one"));
    drop(vmm);
    let second = next.device("one");
    assert_ne!(first, second);
    eventually("end of the session", || fixture.node().report().sessions.is_empty());
    // One that fails is replaced, too.
    next.say("fail");
    let mut third = Vmm::connect(&fixture.socket("one"));
    assert!(![first, second].contains(&third.device("one")));
}

#[test]
fn vms_come_and_go_while_the_node_runs() {
    let fixture = Fixture::new(&[("stays", "a"), ("goes", "b")]);
    let (mut stays, mut goes) = (Vmm::connect(&fixture.socket("stays")), Vmm::connect(&fixture.socket("goes")));
    let (kept, ended) = (stays.device("stays"), goes.device("goes"));
    let (server, _) = stays.attach(1, 1, "x");
    goes.attach(1, 1, "x");
    let notes = fixture.reload(&[("stays", "c"), ("comes", "d")]);
    // Of the one that goes nothing goes on.
    assert!(
        notes.len() == 2 && notes[0].starts_with("VM stays is tenant c now: session 1 keeps its old permissions"),
        "{notes:?}"
    );
    assert!(is_gone(ended) && !is_gone(kept) && !is_gone(server));
    assert!(!fixture.socket("goes").exists());
    eventually("end of the session", || fixture.node().report().sessions.len() == 1);
    let mut comes = Vmm::connect(&fixture.socket("comes"));
    comes.device("comes");
    comes.attach(1, 1, "x");
    // The tenant of what begins from now on.
    stays.attach(2, 1, "y");
    let tenants: Vec<_> = fixture.node().report().sessions.into_iter().map(|session| session.tenant).collect();
    assert_eq!(tenants, ["a", "d", "c"]);
    // An impossible setting has no effect on the others.
    std::fs::create_dir(fixture.socket("no")).unwrap();
    let notes = fixture.reload(&[("stays", "c"), ("no", "e"), ("goes", "b")]);
    assert!(notes.len() == 3 && notes[0].starts_with("VM no: "), "{notes:?}");
    Vmm::connect(&fixture.socket("goes")).device("goes");
}

#[test]
fn nothing_is_left_when_the_node_ends() {
    let mut fixture = Fixture::new(&[("one", "one")]);
    let socket = fixture.socket("one");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o640);
    let mut vmm = Vmm::connect(&socket);
    let device = vmm.device("one");
    let (server, _) = vmm.attach(1, 1, "x");
    fixture.node = None;
    assert!(is_gone(device) && is_gone(server) && !socket.exists());
    assert_eq!(vmm.line(), "");
}
