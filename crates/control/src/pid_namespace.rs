//! Ids of threads across PID namespaces: an API server in a sandbox knows its threads by other ids than the node.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, open};

/// `NS_GET_PID_FROM_PIDNS` of linux/nsfs.h (Linux 6.11): `_IOR(0xb7, 6, int)`.
const GET_PID_FROM_PIDNS: libc::c_ulong = 0x8004_b706;

/// The PID namespace of another process, which is not this process's own.
#[derive(Debug)]
pub struct PidNamespace(OwnedFd);

impl PidNamespace {
    /// `None`: it is this process's own.
    ///
    /// # Errors
    /// There is no such process, or it belongs to somebody that this process may not look at.
    pub fn of(process: u32) -> io::Result<Option<PidNamespace>> {
        let open = |path: &str| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let theirs = open(&format!("/proc/{process}/ns/pid"))?;
        let own = open("/proc/self/ns/pid")?;
        let identity = |file: &OwnedFd| fstat(file).map(|found| (found.st_dev, found.st_ino));
        Ok((identity(&theirs)? != identity(&own)?).then_some(PidNamespace(theirs)))
    }

    /// This process's id for the thread with id `thread` in the namespace, whatever process it belongs to.
    ///
    /// # Errors
    /// There is no such thread, or the kernel cannot tell (before 6.11).
    pub fn outer(&self, thread: u32) -> io::Result<u32> {
        // SAFETY: a number in, a number out.
        let found = unsafe { libc::ioctl(self.0.as_raw_fd(), GET_PID_FROM_PIDNS, libc::c_ulong::from(thread)) };
        match u32::try_from(found) {
            Ok(found) if found != 0 => Ok(found),
            // 0: a thread of that namespace that this process's namespace does not contain.
            Ok(_) => Err(io::ErrorKind::NotFound.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn own_namespace_needs_no_translation() {
        assert!(PidNamespace::of(std::process::id()).expect("of itself").is_none());
        assert!(PidNamespace::of(u32::MAX).is_err());
    }

    #[test]
    fn thread_of_another_namespace_is_found_by_its_id_there() {
        let script = "echo $$; read line";
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.stderr(Stdio::null()).spawn() else { return };
        let mut line = String::new();
        let _ = BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line);
        if line.trim() != "1" {
            let _ = child.wait();
            return; // Only root may make namespaces.
        }
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let inner: u32 = std::fs::read_to_string(children).expect("a list").trim().parse().expect("one id");
        let namespace = PidNamespace::of(inner).expect("a process").expect("a namespace of its own");
        match namespace.outer(1) {
            Ok(found) => assert_eq!(found, inner),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "a kernel that cannot tell"),
        }
        assert!(namespace.outer(40_000).is_err());
        drop(child.stdin.take());
        let _ = child.wait();
    }
}
