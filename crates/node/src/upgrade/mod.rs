//! Upgrades: the program of a running node is replaced by another one, in the same process, and its sessions go on.
//!
//! API servers are the node's children, and their control sockets must stay open: so the process remains, and `exec` puts the
//! new program into it. First the new program is started beside it to see if it runs, reads the configuration and speaks the
//! same versions. Then, with the node's lock held, everything that the configuration does not say goes into a file in memory,
//! copies of all descriptors lose FD_CLOEXEC, and the process executes the new program. Whatever fails before that leaves the
//! node as it was. API servers, cards and accelerators of VMs go on meanwhile; what they and guests send waits in the sockets.

mod account_image;
mod card_image;
mod cards;
pub mod command;
mod image;
pub mod inheritance;
mod restore;
mod save;
pub(crate) mod users;

pub use command::UpgradeCommand;
pub use inheritance::Handover;

use crate::{
    epoll::Token,
    error::NodeError,
    node::{Core, CoreState},
    scheduling::Scheduling,
    servers::cgroups::Groups,
};
use aviary_control::Aside;
use save::Bequest;
use serde::{Deserialize, Serialize};
use std::{
    convert::Infallible,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::{ffi::OsStringExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// How long an upgrade waits for what is under way.
const OBSTACLE_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection that has said nothing for so long is closed for an upgrade.
const SILENT_AFTER: Duration = Duration::from_millis(300);
const OBSTACLE_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long the new program may take to say that it would run.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest text of the new program that is shown, in bytes.
const LONGEST_REASON: usize = 4096;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeRequest {
    /// `None`: the file that the node was started from, as it is now.
    pub program: Option<PathBuf>,
}

/// Versions that a program must have in common with the one whose node it takes over: that of the state, and that of the
/// messages that running API servers speak.
pub fn versions() -> String {
    format!("{}.{}", image::VERSION, aviary_control::VERSION)
}

fn failed(why: impl Into<String>) -> NodeError {
    NodeError::Upgrade(why.into())
}

impl Core {
    /// Returns only if the program was not replaced.
    pub(crate) fn upgrade(&self, admin: BorrowedFd<'_>, request: &UpgradeRequest) -> Result<Infallible, NodeError> {
        let command = self.config.upgrade.as_ref().ok_or_else(|| failed("it serves one program (`aviary run`)"))?;
        self.check_upgradable()?;
        let program = match &request.program {
            Some(program) => program.clone(),
            None => own_program().map_err(|error| failed(error.to_string()))?,
        };
        check(&program, command, &self.aside)?;
        // New connections wait for the program that comes.
        self.hear_connections(false);
        let error = self.replace_when_possible(admin, &program, command);
        self.hear_connections(true);
        Err(error)
    }

    /// Answers the reason if that does not work.
    fn replace_when_possible(&self, admin: BorrowedFd<'_>, program: &Path, command: &UpgradeCommand) -> NodeError {
        let deadline = Instant::now() + OBSTACLE_TIMEOUT;
        loop {
            let mut state = self.state();
            self.close_silent(&mut state, Instant::now() >= deadline);
            // The program that comes would wait for it, too.
            self.aside.hurry();
            self.take_back_all(&mut state);
            match save::obstacle(&state, &self.aside) {
                None => return self.replace(&mut state, admin, program, command),
                Some(save::Obstacle { why, passes: true }) if Instant::now() >= deadline => return failed(why),
                Some(save::Obstacle { why, passes: false }) => return failed(why),
                Some(_) => drop(state),
            }
            std::thread::sleep(OBSTACLE_POLL_INTERVAL);
        }
    }

    fn hear_connections(&self, heard: bool) {
        let state = self.state();
        let Some(listener) = &state.attaching.listener else { return };
        let of_grants = state.grants.listeners().map(|(_, place, socket)| (socket.as_fd(), Token::Grant(place)));
        for (socket, token) in of_grants.chain([(listener.socket.as_fd(), Token::Listener)]) {
            self.epoll.remove(socket);
            if heard && let Err(error) = self.epoll.add(socket, token) {
                self.log.error(format_args!("the node hears no more connections ({error}): restart it"));
            }
        }
    }

    /// Whoever may connect would keep upgrades away by connections that say nothing. An honest guest says what it wants at once.
    /// `all`: also those that wait for their turn, as they attach too often.
    fn close_silent(&self, state: &mut CoreState, all: bool) {
        for session in state.registry.sessions.values().filter(|session| !session.greeted) {
            let silent = session.since.elapsed().is_ok_and(|elapsed| elapsed >= SILENT_AFTER);
            if let Some(socket) = session.socket().filter(|_| silent) {
                // Its API server sees the end of it.
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
        }
        if all {
            self.refuse_waiting(state, "the node's program is being replaced: try again");
        }
    }

    /// Parts of a node that no state has a place for.
    fn check_upgradable(&self) -> Result<(), NodeError> {
        let serves_vms = self.with_state(|state| !state.vms.is_empty());
        let kinds = [
            (self.config.remote.is_some(), "it serves other machines (--listen HOST:PORT)"),
            (serves_vms, "it serves virtual machines ([vms], --vm)"),
        ];
        match kinds.into_iter().find(|(has, _)| *has) {
            Some((_, why)) => {
                Err(failed(format!("{why}, which an upgrade does not support; restart the node instead")))
            }
            None => Ok(()),
        }
    }

    /// Answers the reason if that does not work. Spares and zygotes are of the old program and go first.
    fn replace(
        &self,
        state: &mut CoreState,
        admin: BorrowedFd<'_>,
        program: &Path,
        command: &UpgradeCommand,
    ) -> NodeError {
        self.end_zygotes(state);
        self.end_spares(state, |_| true);
        self.log.info(format_args!(
            "the node's program is replaced by {}: {} sessions continue",
            program.display(),
            state.registry.sessions.len()
        ));
        self.scheduling.iter().for_each(Scheduling::let_go);
        let error = self.execute(state, admin, program, command).map_or_else(|error| error, |never| match never {});
        if let Some(scheduling) = &self.scheduling
            && let Err(error) = scheduling.resume()
        {
            self.log.error(format_args!(
                "devices are no longer scheduled (the node's program was not replaced, and scheduling did not begin again: {error}): all sessions use them without weights and priorities; restart the node"
            ));
        }
        let now = Instant::now();
        state.spares.refill_at = Some(now);
        if let Some((_, own)) = state.spares.place_of(None) {
            own.due = self.config.zygote.as_ref().map(|_| now);
        }
        // The loop waits with the deadlines of before.
        self.wake();
        failed(format!("{}: {error}", program.display()))
    }

    fn execute(
        &self,
        state: &CoreState,
        admin: BorrowedFd<'_>,
        program: &Path,
        command: &UpgradeCommand,
    ) -> io::Result<Infallible> {
        let mut bequest = Bequest::default();
        let cards = cards::save(state, &mut bequest)?;
        let groups = self.groups.as_ref().map(Groups::image).transpose()?;
        let image =
            save::save(state, (admin, state.upgrades + 1), &self.config.contexts, (cards, groups), &mut bequest)?;
        let file = inheritance::leave(&image, &bequest.numbers())?;
        let mut next = Command::new(program);
        let name = std::env::args_os().next().unwrap_or_else(|| "aviary".into());
        next.arg0(name).args(&command.arguments).arg(command.handover).arg(inheritance::number_of(&file));
        // Only an error returns; the copies are closed then.
        Err(next.exec())
    }
}

/// The file that this process was started from, also if another one lies there by now.
fn own_program() -> io::Result<PathBuf> {
    let link = std::fs::read_link("/proc/self/exe")?.into_os_string().into_vec();
    let name = link.strip_suffix(b" (deleted)").unwrap_or(&link).to_vec();
    Ok(OsString::from_vec(name).into())
}

/// Starts the new program to see if it could take over.
fn check(program: &Path, command: &UpgradeCommand, aside: &Aside) -> Result<(), NodeError> {
    let refused = |why: String| failed(format!("{}: {why}", program.display()));
    let mut beside = Command::new(program);
    beside
        .args(&command.arguments)
        .args([command.check, &versions()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = aside.while_spawning(|| beside.spawn()).map_err(|error| refused(error.to_string()))?;
    let deadline = Instant::now() + CHECK_TIMEOUT;
    let mut errors = child.stderr.take();
    // It says little: less than a pipe takes.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(OBSTACLE_POLL_INTERVAL),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(refused("it did not answer in time whether it can take over".into()));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = vec![0; LONGEST_REASON];
    let read = errors.as_mut().map_or(Ok(0), |errors| io::Read::read(errors, &mut said));
    said.truncate(read.unwrap_or(0));
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Err(refused(if said.is_empty() { format!("it cannot take over: {status}") } else { said }))
}

impl Bequest {
    fn numbers(&self) -> Vec<i32> {
        self.copies().iter().map(AsRawFd::as_raw_fd).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(script: &str) -> UpgradeCommand {
        UpgradeCommand { arguments: vec!["-c".into(), script.into()], check: "--check", handover: "--handover" }
    }

    #[test]
    fn program_that_cannot_take_over_is_told_with_its_words() {
        let shell = Path::new("/bin/sh");
        let check = |program: &Path, command: UpgradeCommand| check(program, &command, &Aside::default());
        check(shell, command(&format!("test \"$0 $1\" = '--check {}'", versions()))).unwrap();
        let told = check(shell, command("echo no such file >&2; exit 3")).unwrap_err().to_string();
        assert!(told.contains("/bin/sh: no such file"), "{told}");
        let told = check(shell, command("exit 3")).unwrap_err().to_string();
        assert!(told.contains("it cannot take over"), "{told}");
        assert!(check(Path::new("/none"), command("")).is_err());
    }

    #[test]
    fn own_program_is_this_test() {
        assert_eq!(own_program().unwrap(), std::env::current_exe().unwrap());
    }
}
