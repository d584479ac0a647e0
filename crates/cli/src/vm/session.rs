//! One command in a guest: its input, output and exit status.

use super::qemu::{Boot, Machine, Qemu, with_path};
use crate::daemons::signals::Signals;
use crate::guest::{Additions, Archive, COMMAND, quoted};
use anyhow::{Context, bail};
use aviary_node::PrivateDir;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    net::Shutdown,
    os::{
        fd::AsFd,
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, ExitCode, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Of the console, when the guest ends without a word.
const SHOWN_LOG_LINES: usize = 15;
/// QEMU ends on SIGTERM by itself, unless it hangs.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

pub struct Job<'a> {
    pub command: &'a [OsString],
    pub additions: &'a Additions,
    pub console: Option<PathBuf>,
}

pub fn run(
    qemu: &Qemu,
    machine: &Machine,
    kernel: PathBuf,
    initramfs: &Path,
    job: Job<'_>,
) -> anyhow::Result<ExitCode> {
    let directory = PrivateDir::create()?;
    let own = directory.path().join("initramfs");
    write_initramfs(initramfs, &own, &job)?;
    let console = job.console.unwrap_or_else(|| directory.path().join("console"));
    let boot = Boot { kernel, initramfs: own, console: Some(console.clone()) };
    let mut arguments = machine.arguments(Some(&boot));
    arguments.extend(["-device".into(), "virtio-serial-pci".into()]);
    // In this order: the guest opens the last one first, and then the others are connected.
    let input = Port::create(&directory, "in", &mut arguments)?;
    let output = Port::create(&directory, "out", &mut arguments)?;
    let error = Port::create(&directory, "err", &mut arguments)?;
    let status = Port::create(&directory, "status", &mut arguments)?;
    if qemu.can_follow_parent() {
        arguments.extend(["-run-with".into(), "exit-with-parent=on".into()]);
    }
    let signals = Signals::catch().context("cannot catch signals")?;
    let mut command = qemu.command(&arguments);
    // Of its own group: Ctrl-C at the terminal is for this process, which then ends QEMU.
    let mut child = command
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", qemu.program().display()))?;
    let input_path = input.path.clone();
    thread::spawn(move || feed(input));
    let relays = [relay(output, io::stdout()), relay(error, io::stderr())];
    let words = thread::spawn(move || {
        let mut text = String::new();
        if let Ok((mut port, _)) = status.listener.accept() {
            let _ = port.read_to_string(&mut text);
        }
        text
    });
    let signal = wait(&mut child, &signals)?;
    // Ends the threads that still wait for QEMU, which will never connect.
    for name in ["out", "err", "status"] {
        drop(UnixStream::connect(input_path.with_file_name(name)));
    }
    let told = words.join().unwrap_or_default();
    for relay in relays {
        let _ = relay.join();
    }
    if let Some(signal) = signal {
        return Ok(ExitCode::from(128 + u8::try_from(signal).unwrap_or(0)));
    }
    match exit_status(&told) {
        Some(status) => Ok(ExitCode::from(status)),
        None => bail!("{}", end_without_status(&told, &console)),
    }
}

/// The image's own with one more archive behind it: the kernel unpacks one after the other.
fn write_initramfs(image: &Path, own: &Path, job: &Job<'_>) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", own.display());
    let mut archive = Archive::default();
    job.additions.put_into(&mut archive)?;
    let words: Vec<String> = job.command.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    archive.file(COMMAND, format!("exec {}\n", words.join(" ")), 0o644);
    let size = fs::copy(image, own).with_context(failed)?;
    let mut file = fs::File::options().append(true).open(own).with_context(failed)?;
    // Archives begin at multiples of four, with zeros before them.
    file.write_all(&[0; 4][..(size.wrapping_neg() % 4) as usize]).with_context(failed)?;
    let mut file = io::BufWriter::new(file);
    archive.write(&mut file).with_context(failed)?;
    file.flush().with_context(failed)
}

/// One port of the guest's virtio console: QEMU connects to a socket of ours.
struct Port {
    listener: UnixListener,
    path: PathBuf,
}

impl Port {
    fn create(directory: &PrivateDir, name: &str, arguments: &mut Vec<OsString>) -> anyhow::Result<Self> {
        let path = directory.path().join(name);
        let listener = UnixListener::bind(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let chardev = format!("{},server=off", with_path(&format!("socket,id={name},path="), &path));
        arguments.extend(["-chardev".into(), chardev.into()]);
        arguments.extend(["-device".into(), format!("virtserialport,chardev={name},name=aviary.{name}").into()]);
        Ok(Self { listener, path })
    }
}

fn feed(port: Port) {
    if let Ok((mut connection, _)) = port.listener.accept() {
        let _ = io::copy(&mut io::stdin().lock(), &mut connection);
        // Ends the input after all earlier bytes; the socket stays open, because QEMU drops bytes
        // that it has not passed on when its peer is gone.
        let _ = connection.shutdown(Shutdown::Write);
        let _ = connection.read(&mut [0]);
    }
}

fn relay(port: Port, mut to: impl Write + Send + 'static) -> JoinHandle<()> {
    thread::spawn(move || {
        let Ok((mut connection, _)) = port.listener.accept() else { return };
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = connection.read(&mut buffer) {
            // A reader that went away does not stop the guest, whose status still counts.
            let _ = to.write_all(&buffer[..count]).and_then(|()| to.flush());
        }
    })
}

/// Until QEMU has ended. The signal that ended it, if one came to this process.
fn wait(child: &mut Child, signals: &Signals) -> anyhow::Result<Option<i32>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("QEMU has no process id")?;
    let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot wait for QEMU")?;
    loop {
        signals.wait(process.as_fd()).context("cannot wait for QEMU")?;
        if child.try_wait().context("cannot wait for QEMU")?.is_some() {
            return Ok(None);
        }
        if let Some(signal) = signals.noted() {
            let _ = rustix::process::pidfd_send_signal(&process, rustix::process::Signal::TERM);
            let until = Instant::now() + SHUTDOWN_TIMEOUT;
            while child.try_wait().context("cannot wait for QEMU")?.is_none() {
                if Instant::now() > until {
                    child.kill().context("cannot end QEMU")?;
                }
                thread::sleep(Duration::from_millis(10));
            }
            return Ok(Some(signal));
        }
    }
}

/// The guest says `ready`, and `exit N` in the end.
fn exit_status(told: &str) -> Option<u8> {
    told.lines().find_map(|line| line.strip_prefix("exit ")?.parse().ok())
}

fn end_without_status(told: &str, console: &Path) -> String {
    let when = if told.contains("ready") { "before its command did" } else { "before its command began" };
    let printed = fs::read(console).unwrap_or_default();
    let printed = String::from_utf8_lossy(&printed);
    let lines: Vec<&str> = printed.lines().collect();
    if lines.is_empty() {
        return format!(
            "the VM ended {when}, without any output on its console: is the kernel of the image for this machine?"
        );
    }
    // Why, and not the many lines of registers after it.
    if let Some(panic) = lines.iter().find(|line| line.contains("Kernel panic")) {
        let memory = if panic.contains("memory") { "; give it more with --memory" } else { "" };
        return format!("the VM ended {when}: {panic}{memory} (--console FILE keeps the kernel's whole output)");
    }
    let last = &lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..];
    format!("the VM ended {when}; the last lines of its console:\n{}", last.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_words() {
        assert_eq!(exit_status("ready\nexit 7\n"), Some(7));
        assert_eq!(exit_status("ready\n"), None);
        assert_eq!(exit_status("ready\nexit"), None);
    }

    #[test]
    fn an_early_end_shows_the_console() {
        let directory = PrivateDir::create().unwrap();
        let console = directory.path().join("console");
        assert!(end_without_status("", &console).contains("before its command began"));
        fs::write(&console, "first\n".repeat(40) + "last\n").unwrap();
        let text = end_without_status("ready\n", &console);
        assert!(text.contains("before its command did") && text.ends_with("last"), "{text}");
        assert_eq!(text.lines().count(), 1 + SHOWN_LOG_LINES);
        fs::write(&console, "Kernel panic - not syncing: Out of memory\nCall Trace:\n").unwrap();
        let text = end_without_status("", &console);
        assert!(text.contains("not syncing") && text.contains("--memory") && !text.contains("Call Trace"), "{text}");
    }

    #[test]
    fn the_command_follows_the_image() {
        let directory = PrivateDir::create().unwrap();
        let (image, own) = (directory.path().join("image"), directory.path().join("own"));
        fs::write(&image, "12345").unwrap();
        let words = [OsString::from("echo"), OsString::from("it's")];
        let job = Job { command: &words, additions: &Additions::default(), console: None };
        write_initramfs(&image, &own, &job).unwrap();
        let bytes = fs::read(&own).unwrap();
        assert_eq!(&bytes[..8], b"12345\0\0\0");
        assert_eq!(&bytes[8..14], b"070701");
        assert!(String::from_utf8_lossy(&bytes).contains(r"exec 'echo' 'it'\''s'"));
    }
}
