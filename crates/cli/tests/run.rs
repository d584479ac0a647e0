//! `aviary` as its users start it, with an API build that is a mere description.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::PermissionsExt,
        net::UnixStream,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

const AVIARY: &str = env!("CARGO_BIN_EXE_aviary");
const DESCRIPTION: &str = r#"{"name":"fake","version":"1.0","soname":"libfake.so.1","library":"libfake.so.1","launch":[
    {"environment":{"name":"FAKE_PLACE","value":"{dir}|{library}"}},
    {"dropin":{"soname":"libfake.so.1","only_if_missing":false}}]}"#;

/// A folder of API builds, with one in it.
struct Builds(PathBuf);

impl Builds {
    fn new(test: &str) -> Self {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        fs::create_dir_all(root.join("fake")).unwrap();
        fs::write(root.join("fake/api.json"), DESCRIPTION).unwrap();
        fs::write(root.join("fake/libfake.so.1"), "").unwrap();
        Self(fs::canonicalize(root).unwrap())
    }

    fn aviary(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(AVIARY);
        command.args(arguments).env("AVIARY_API_PATH", &self.0).env_remove("AVIARY_SERVER");
        command
    }

    fn run(&self, program: &[&str]) -> Output {
        self.aviary(&["run", "--api", "fake", "--"]).args(program).output().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.0.join("node.sock")
    }

    fn serve(&self) -> Daemon {
        let address = format!("unix:{}", self.socket().display());
        let child =
            self.aviary(&["serve", "--spares", "0", "--listen", &address]).stderr(Stdio::piped()).spawn().unwrap();
        let daemon = Daemon(child);
        eventually("the daemon's socket", || self.socket().exists());
        daemon
    }
}

impl Drop for Builds {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within 10 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status().unwrap();
    assert!(status.success());
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_reader_that_has_gone_ends_a_list_without_a_word() {
    let (builds, mut command) = (Builds::new("gone-reader"), Command::new(AVIARY));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let list =
        command.args(["ps", "--json"]).env("XDG_RUNTIME_DIR", &builds.0).env_remove("AVIARY_SERVER").stdout(writer);
    let done = list.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(!told.contains("panicked") && done.status.code() == Some(128 + 13), "{:?}: {told}", done.status);
}

#[test]
fn the_status_is_the_programs_own() {
    let builds = Builds::new("status");
    assert_eq!(builds.run(&["true"]).status.code(), Some(0));
    assert_eq!(builds.run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(builds.run(&["sh", "-c", "kill -9 $$"]).status.signal(), Some(9));
}

#[test]
fn programs_that_cannot_run_are_told_apart() {
    let builds = Builds::new("missing");
    let missing = builds.run(&["/no/such/program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("/no/such/program"));
    let plain = builds.0.join("fake/api.json");
    assert_eq!(builds.run(&[plain.to_str().unwrap()]).status.code(), Some(126));
}

#[test]
fn standard_input_and_output_pass_through() {
    let builds = Builds::new("pipes");
    let mut child = builds
        .aviary(&["run", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through and through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "through and through");
}

#[test]
fn the_program_finds_node_and_library() {
    let builds = Builds::new("environment");
    let script = r#"echo "$AVIARY_SERVER"; echo "$FAKE_PLACE"; readlink "${LD_LIBRARY_PATH%%:*}/libfake.so.1"; stat -c %a "$(dirname "${AVIARY_SERVER#unix:}")""#;
    let output = builds.run(&["sh", "-c", script]);
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    let library = builds.0.join("fake/libfake.so.1");
    let socket = lines[0].strip_prefix("unix:").unwrap();
    assert_eq!(lines[1], format!("{}|{}", builds.0.join("fake").display(), library.display()));
    assert_eq!(lines[2], library.to_str().unwrap());
    assert_eq!(lines[3], "700", "the node's directory is its owner's only");
    assert!(!Path::new(socket).parent().unwrap().exists(), "nothing is left behind");
}

#[test]
fn the_transport_can_be_chosen() {
    let builds = Builds::new("mirror");
    let output =
        builds.aviary(&["run", "--mirror", "--api", "fake", "--", "printenv", "AVIARY_TRANSPORT"]).output().unwrap();
    assert_eq!(text(&output.stdout), "stream\n");
}

/// A process that a script starts in the background ignores SIGINT, also these tests; then neither aviary nor the
/// program, a shell, would listen to it.
fn with_default_signals(command: &Command) -> Command {
    let mut wrapped = Command::new("env");
    wrapped.arg("--default-signal").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

#[test]
fn signals_reach_the_program() {
    let builds = Builds::new("signals");
    for (name, code) in [("TERM", 9), ("INT", 8), ("HUP", 7)] {
        let script = format!("trap 'exit {code}' {name}; echo ready; while :; do sleep 0.05; done");
        let command = builds.aviary(&["run", "--api", "fake", "--", "sh", "-c", &script]);
        let mut child = with_default_signals(&command).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    let builds = Builds::new("nohup");
    let script = "trap '' HUP; exec \"$0\" run --api fake -- sh -c 'kill -HUP $$; exit 3'";
    let mut command = Command::new("sh");
    command.args(["-c", script, AVIARY]).env("AVIARY_API_PATH", &builds.0).env_remove("AVIARY_SERVER");
    assert_eq!(command.status().unwrap().code(), Some(3));
}

/// All that a program can see of its own process.
#[test]
fn program_is_the_process_that_was_started() {
    let builds = Builds::new("process");
    // Process, parent, group, session, and how many children it has. The shell itself reads: programs that it starts for that would be
    // children, too, as many as have been started by then.
    let script = "echo $$; ps -o ppid= -o pgid= -o sid= -p $$; read -r children </proc/$$/task/$$/children; set -- $children; echo $#";
    let seen = |mut command: Command| {
        let child = command.args(["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let id = child.id();
        let output = text(&child.wait_with_output().unwrap().stdout);
        let (process, rest) = output.split_once('\n').unwrap();
        assert_eq!(process, id.to_string());
        rest.to_owned()
    };
    assert_eq!(seen(builds.aviary(&["run", "--api", "fake", "--"])), seen(Command::new("env")));
}

/// Every signal that can be caught, sent to the process that was started, to its group, or by the program to itself: the same
/// handlers, ends and stops as without Aviary.
#[test]
fn signals_do_what_they_do_natively() {
    let builds = Builds::new("every-signal");
    let script = r#"
import resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
number, way = int(sys.argv[1]), sys.argv[2]
count = 0
def note(*_):
    global count
    count += 1
if way == "handled":
    signal.signal(number, note)
print("ready", flush=True)
sys.stdin.readline()
print("handled", count, flush=True)
"#;
    let observed = |mut command: Command, number: i32, way: &str, group: bool| {
        command.args(["python3", "-c", script, &number.to_string(), way]);
        let mut started = with_default_signals(&command);
        started.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = started.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let to = if group { format!("-{}", child.id()) } else { child.id().to_string() };
        assert!(Command::new("kill").args([&format!("-{number}"), "--", &to]).status().unwrap().success());
        // A process that was stopped is continued. (This takes back a stop that is still pending, also from a handler.)
        if way == "default" {
            Command::new("kill").args(["-CONT", &child.id().to_string()]).status().unwrap();
        }
        drop(child.stdin.take());
        line.clear();
        lines.read_line(&mut line).unwrap();
        (child.wait().unwrap(), line)
    };
    // Without 9 and 19, and without 18 twice.
    for number in (1..32).filter(|number| ![9, 18, 19].contains(number)) {
        for (way, group) in [("default", false), ("handled", false), ("default", true), ("handled", true)] {
            let native = observed(Command::new("env"), number, way, group);
            let ours = observed(builds.aviary(&["run", "--api", "fake", "--"]), number, way, group);
            assert_eq!(ours, native, "signal {number}, {way}, to the group: {group}");
        }
    }
}

/// Says how often a signal came, once it has read a line or the terminal has gone.
const AT_A_TERMINAL: &str = r#"
import resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
number, way, told = int(sys.argv[1]), sys.argv[2], sys.argv[3]
count = 0
def note(*_):
    global count
    count += 1
if way == "handled":
    signal.signal(number, note)
print("ready", flush=True)
try:
    line = sys.stdin.readline()
except OSError:
    line = ""
# The terminal has gone: the signal comes later.
while not line and count == 0:
    time.sleep(0.01)
with open(told, "w") as file:
    print("handled", count, file=file)
"#;

/// A terminal with a program in its foreground, to which it does one thing. Between both is a process as a shell, which notes how the
/// program ends, and lets it go on when it was stopped.
const TERMINAL: &str = r#"
import fcntl, os, pty, signal, struct, sys, termios
number, way, told, program, command = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:]
def shell():
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        os.execvp(command[0], command + ["python3", "-c", program, str(number), way, told])
    # Like a shell, it passes on that the terminal has gone.
    signal.signal(signal.SIGHUP, lambda *_: os.killpg(child, signal.SIGHUP))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        with open(told + ".ends", "a") as file:
            print("status", status, file=file)
        if not os.WIFSTOPPED(status):
            os._exit(0)
        os.kill(child, signal.SIGCONT)
process, terminal = pty.fork()
if process == 0:
    shell()
text = b""
while b"ready\r\n" not in text:
    text += os.read(terminal, 4096)
if number == signal.SIGHUP:
    os.close(terminal)
elif number == signal.SIGWINCH:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
else:
    os.write(terminal, {signal.SIGINT: b"\x03", signal.SIGQUIT: b"\x1c", signal.SIGTSTP: b"\x1a"}[number])
if number != signal.SIGHUP:
    os.write(terminal, b"\n")
os.waitpid(process, 0)
print(open(told + ".ends").read(), open(told).read() if os.path.exists(told) else "nothing told")
"#;

/// What a terminal does to the program in its foreground (keys, a new size, its end): the same handlers, ends and stops as without
/// Aviary, each once.
#[test]
fn terminals_do_what_they_do_natively() {
    let builds = Builds::new("terminal");
    let told = builds.0.join("told");
    let observed = |command: Command, number: i32, way: &str| {
        for file in [told.clone(), told.with_extension("ends")] {
            let _ = fs::remove_file(file);
        }
        let command = with_default_signals(&command);
        let mut outer = Command::new("python3");
        outer.args(["-c", TERMINAL, &number.to_string(), way]).arg(&told).arg(AT_A_TERMINAL);
        outer.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        text(&outer.output().unwrap().stdout)
    };
    // HUP, INT, QUIT, TSTP, WINCH.
    for number in [1, 2, 3, 20, 28] {
        for way in ["default", "handled"] {
            let native = observed(Command::new("env"), number, way);
            let ours = observed(builds.aviary(&["run", "--api", "fake", "--"]), number, way);
            assert_eq!(ours, native, "signal {number}, {way}");
            let expected = if way == "handled" { "handled 1" } else { "status" };
            assert!(native.contains(expected), "signal {number}, {way}: {native}");
        }
    }
}

#[test]
fn node_lives_as_long_as_a_process_in_the_background() {
    let builds = Builds::new("background");
    let place = builds.0.join("place");
    // Without the inherited descriptors and with them.
    for closing in ["exec 3>&-; for n in $(ls /proc/$$/fd); do [ $n -gt 2 ] && eval \"exec $n>&-\"; done;", ""] {
        let script = format!(
            "({closing} sleep 0.3; while [ ! -e {0}.go ]; do sleep 0.05; done; [ -S \"${{AVIARY_SERVER#unix:}}\" ] && echo alive >{0}.told || echo gone >{0}.told) </dev/null >/dev/null 2>&1 & echo \"$AVIARY_SERVER\"",
            place.display()
        );
        let output = builds.run(&["bash", "-c", &script]);
        let socket = PathBuf::from(text(&output.stdout).trim().strip_prefix("unix:").unwrap());
        assert!(socket.exists(), "the node ended with the program");
        fs::write(place.with_extension("go"), "").unwrap();
        let told = place.with_extension("told");
        eventually("the process in the background", || {
            fs::read_to_string(&told).is_ok_and(|told| told.ends_with('\n'))
        });
        assert_eq!(fs::read_to_string(&told).unwrap(), "alive\n");
        eventually("the node's end", || !socket.parent().unwrap().exists());
        fs::remove_file(told).unwrap();
        fs::remove_file(place.with_extension("go")).unwrap();
    }
}

#[test]
fn unknown_apis_are_named() {
    let builds = Builds::new("unknown");
    let output = builds.aviary(&["run", "--api", "nothing", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no build of API `nothing` found"), "{}", text(&output.stderr));
}

#[test]
fn a_daemon_serves_once_and_cleans_up() {
    let builds = Builds::new("serve");
    let mut daemon = builds.serve();
    let mode = fs::metadata(builds.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let address = format!("unix:{}", builds.socket().display());
    let second = builds.aviary(&["serve", "--listen", &address]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("a node already listens on"), "{}", text(&second.stderr));
    let listed = builds.aviary(&["ps", "--json", "--server", &address]).output().unwrap();
    let reports: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(reports[0]["address"], address);
    signal(&daemon.0, "TERM");
    assert_eq!(daemon.0.wait().unwrap().code(), Some(0));
    let left: Vec<_> = fs::read_dir(&builds.0).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["fake"], "the sockets and the lock are gone");
}

#[test]
fn a_killed_daemons_socket_is_taken_over() {
    let builds = Builds::new("stale");
    let mut daemon = builds.serve();
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
    assert!(builds.socket().exists());
    let mut next =
        builds.aviary(&["serve", "--spares", "0", "--listen", &format!("unix:{}", builds.socket().display())]);
    let mut next = Daemon(next.stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(next.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    // A line that says why API servers are not sandboxed may come first.
    let listens = lines.take(3).any(|line| line.contains("listening"));
    assert!(listens);
}

#[test]
fn a_server_is_used_and_not_started() {
    let builds = Builds::new("server");
    let output = builds
        .aviary(&["run", "--server", "unix:/somewhere/node.sock", "--api", "fake", "--", "printenv", "AVIARY_SERVER"])
        .output();
    assert_eq!(text(&output.unwrap().stdout), "unix:/somewhere/node.sock\n");
    let wrong = builds.aviary(&["run", "--server", "nonsense", "--", "true"]).output().unwrap();
    assert!(text(&wrong.stderr).contains("expected unix:"), "{}", text(&wrong.stderr));
}

#[test]
fn a_programs_name_does_nothing_to_the_terminal() {
    let builds = Builds::new("terminal");
    let daemon = builds.serve();
    // Of the whole process; the node reads it when it is asked.
    fs::write("/proc/self/comm", "a\x1b[2J\rb").unwrap();
    let _attached = UnixStream::connect(builds.socket()).unwrap();
    let address = format!("unix:{}", builds.socket().display());
    let listed = || text(&builds.aviary(&["ps", "--server", &address]).output().unwrap().stdout);
    eventually("the session", || listed().contains("(attaching)"));
    let listed = listed();
    assert!(listed.contains(r"a\u{1b}[2J\rb"), "{listed:?}");
    assert!(!listed.chars().any(|letter| letter.is_control() && letter != '\n'), "{listed:?}");
    drop(daemon);
}

#[test]
fn names_of_local_users_get_no_certificate() {
    let builds = Builds::new("names");
    let folder = builds.0.join("tls");
    let init =
        |name: &str| builds.aviary(&["tls", "init", folder.to_str().unwrap(), "--tenant", name]).output().unwrap();
    let refused = init("uid-0");
    assert!(!refused.status.success() && text(&refused.stderr).contains("local user"), "{refused:?}");
    assert!(!folder.exists(), "nothing was made");
    assert!(init("alice").status.success());
}

#[test]
fn a_node_of_root_has_no_plain_address() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let builds = Builds::new("plain");
    let done = builds.aviary(&["serve", "--listen", "127.0.0.1:1", "--plain-loopback"]).output().unwrap();
    let why = text(&done.stderr);
    assert!(!done.status.success() && why.contains("runs as root") && why.contains("--tls-dir"), "{why}");
}

#[test]
fn closed_pipe_ends_a_command_quietly() {
    let builds = Builds::new("closed-pipe");
    let commands: [&[&str]; 4] = [&["ps"], &["ps", "--json"], &["doctor"], &["completions", "bash"]];
    for arguments in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = builds.aviary(arguments).stdout(writer).output().unwrap();
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        assert!(matches!(output.status.code(), Some(0 | 1 | 141)), "{arguments:?}: {}", output.status);
    }
}

#[test]
fn doctor_needs_no_compilers() {
    let builds = Builds::new("doctor");
    fs::write(builds.0.join("fake/server.so"), "").unwrap();
    let output = builds.aviary(&["doctor"]).env("PATH", "/nowhere").output().unwrap();
    let told = text(&output.stdout);
    assert!(told.contains("weak     C compiler (for `aviary spec build`): not here; apt-get install gcc"), "{told}");
    assert!(output.status.success() && !told.contains("MISSING"), "{told}");
    fs::remove_file(builds.0.join("fake/server.so")).unwrap();
    assert_eq!(builds.aviary(&["doctor"]).output().unwrap().status.code(), Some(1), "an incomplete build");
}

#[test]
fn node_of_a_program_with_few_descriptors_has_its_own_limit() {
    let builds = Builds::new("descriptors");
    let under = |limit: &str, program: &str| {
        let script = format!("ulimit {limit} && exec {AVIARY} run --api fake -- sh -c '{program}'");
        builds
            .aviary(&[])
            .get_envs()
            .fold(&mut Command::new("sh"), |command, (name, value)| match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            })
            .args(["-c", &script])
            .output()
            .unwrap()
    };
    let enough = under("-Sn 20", "ulimit -Sn");
    assert_eq!((text(&enough.stdout).trim(), enough.status.code()), ("20", Some(0)), "{}", text(&enough.stderr));
    for few in ["-n 8", "-n 20", "-n 30"] {
        let refused = under(few, "echo started");
        let told = text(&refused.stderr);
        assert!(told.lines().count() == 1 && told.contains("ulimit -n") && told.contains("needs 64"), "{few}: {told}");
        assert_eq!((text(&refused.stdout).as_str(), refused.status.code()), ("", Some(1)), "{few}");
    }
}

#[test]
fn library_that_a_program_loads_past_the_guest_library_is_told_once() {
    let builds = Builds::new("strays");
    let source = builds.0.join("loads.c");
    fs::write(&source, "#include <dlfcn.h>\n#include <stdio.h>\nint main(int c, char **v) { return c > 1 && dlopen(v[1], RTLD_NOW) && getchar() == EOF ? 0 : 1; }\n").unwrap();
    let vendors = builds.0.join("elsewhere");
    fs::create_dir(&vendors).unwrap();
    let (library, program) = (vendors.join("libfake.so.1.2"), builds.0.join("loads"));
    let compile = |arguments: &[&str]| assert!(Command::new("gcc").args(arguments).status().unwrap().success());
    compile(&["-shared", "-fPIC", "-o", library.to_str().unwrap(), "-x", "c", "/dev/null"]);
    compile(&["-o", program.to_str().unwrap(), source.to_str().unwrap(), "-ldl"]);
    let mut child = builds
        .aviary(&["run", "--api", "fake", "--", program.to_str().unwrap(), library.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("has loaded") && line.contains(library.to_str().unwrap()), "{line}");
    // A second look finds it again.
    std::thread::sleep(Duration::from_millis(1500));
    drop(child.stdin.take());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut errors, &mut rest).unwrap();
    assert_eq!(rest, "");
    assert!(child.wait().unwrap().success());
}
