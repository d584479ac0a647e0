//! Control groups (cgroup v2) of API servers: one for each, in one for each tenant.
//!
//! Their limits hold for everything that a tenant's native code does on the host, whatever it starts, and their end ends all of
//! it. The node uses a directory that was delegated to it and none other.
//!
//! To move a process may take the kernel some 20 ms, for which neither the node's loop nor an attach waits: a thread does it. An
//! API server is in a group of its own, with a session's limits, from a moment after its start on; that of its tenant it joins
//! a moment after its first session began, with all that it may have started in between.

use crate::log::Log;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Limits of one group; `None`: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupLimits {
    /// Bytes of memory, with page cache and what the kernel keeps for its processes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Share of CPU time where it is scarce, from 1 to 10000; the kernel's usual one is 100.
    pub cpu_weight: Option<u64>,
}

impl GroupLimits {
    /// This, with `usual` where it says nothing.
    pub fn or(self, usual: GroupLimits) -> GroupLimits {
        GroupLimits {
            memory: self.memory.or(usual.memory),
            processes: self.processes.or(usual.processes),
            cpu_weight: self.cpu_weight.or(usual.cpu_weight),
        }
    }
}

/// Where groups are made, and their limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSettings {
    /// A directory of cgroup v2 that the node may use as it likes.
    pub folder: PathBuf,
    /// Of each tenant's API servers together.
    pub tenant: GroupLimits,
    /// Of tenants that have others.
    pub tenants: BTreeMap<String, GroupLimits>,
    /// Of each API server, that is of a guest process's sessions.
    pub session: GroupLimits,
}

impl GroupSettings {
    fn of_tenant(&self, name: &str) -> GroupLimits {
        self.tenants.get(name).copied().unwrap_or_default().or(self.tenant)
    }
}

/// The mount point of cgroup v2.
fn hierarchy() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    mount.split_whitespace().nth(4).map(PathBuf::from)
}

/// The directory of this process, if it may use that as it likes: one that systemd delegated (`Delegate=yes`), or the
/// root of the hierarchy as this process sees it. A node that has stepped aside there has still the same one.
pub fn delegated() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = before_step(own.lines().find_map(|line| line.strip_prefix("0::/"))?).to_owned();
    let folder = hierarchy()?.join(&own);
    let told = |name: &str| {
        let mut value = [0; 1];
        rustix::fs::getxattr(&folder, name, &mut value[..]).is_ok_and(|length| length == 1 && value == *b"1")
    };
    if !own.is_empty() && !told("user.delegate") && !told("trusted.delegate") {
        return None;
    }
    // Where others have the controllers (cgroup v1), nothing would be limited.
    let has = fs::read_to_string(folder.join("cgroup.controllers")).ok()?;
    let useful = has.split_whitespace().any(|name| CONTROLLERS.contains(&name));
    (useful && rustix::fs::access(&folder, rustix::fs::Access::WRITE_OK).is_ok()).then_some(folder)
}

/// A node's own leaf, in the directory that it left.
const LEAF: &str = "aviary-node-";

/// The directory that a node was in before it stepped aside: the program that takes its place is started in the leaf.
fn before_step(own: &str) -> &str {
    let (folder, name) = own.rsplit_once('/').unwrap_or(("", own));
    let is_leaf = name.strip_prefix(LEAF).is_some_and(|id| id.parse::<u32>().is_ok());
    if is_leaf { folder } else { own }
}

/// Leaves the directory, whose controllers its children can have only if no process is in it itself. Nothing happens where
/// processes of others are in it, too.
fn step_aside(folder: &Path) {
    let own = std::process::id();
    if folder.join("cgroup.events").exists() && processes_of(folder) == [own] {
        let leaf = folder.join(format!("{LEAF}{own}"));
        // A refusal leaves the groups without limits, which is told.
        let _ = fs::create_dir(&leaf).map_err(at(&leaf)).and_then(|()| move_to(&leaf, own));
    }
}

/// {0}: {1}
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct GroupError(PathBuf, io::Error);

fn at(path: &Path) -> impl FnOnce(io::Error) -> GroupError {
    let path = path.to_owned();
    move |error| GroupError(path, error)
}

/// Longest pause between two looks at a group that is not empty yet.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long the thread may take for what it was told before, when it is asked for its directories.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the thread that ends looks for the end of processes that were killed.
const LAST_WAIT: Duration = Duration::from_secs(2);

enum Job {
    /// An API server has been started; its processes.
    Start { server: u64, processes: Vec<u32> },
    /// It is this tenant's.
    Join { server: u64, tenant: String },
    /// It was reaped.
    End { server: u64 },
    /// Which directories there are.
    Tell(SyncSender<GroupsImage>),
}

/// The directories of a node, for the program that takes its place in the same process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsImage {
    /// That all others are in.
    folder: PathBuf,
    /// Of tenants, by their names.
    tenants: BTreeMap<String, PathBuf>,
    /// Of API servers.
    servers: BTreeMap<u64, Vec<PathBuf>>,
}

impl GroupsImage {
    /// Settings with which these groups go on. They stay where they are whatever the configuration says by now.
    pub fn settings(&self, configured: Option<GroupSettings>) -> GroupSettings {
        GroupSettings { folder: self.folder.clone(), ..configured.unwrap_or_default() }
    }
}

/// The groups of this node's API servers. Dropping it removes them.
#[derive(Debug)]
pub struct Groups {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// Of API servers that were told to have ended and whose groups are empty.
    empty: Arc<Mutex<Vec<u64>>>,
    bell: OwnedFd,
}

impl Groups {
    /// # Errors
    /// The folder is none of cgroup v2, or is not the node's to use.
    pub fn new(settings: GroupSettings, log: Log) -> Result<Groups, GroupError> {
        Self::again(settings, GroupsImage::default(), &BTreeSet::new(), log)
    }

    /// With the directories of the program before. Those of API servers that are not `alive` end.
    ///
    /// # Errors
    /// As `new`.
    pub fn again(
        settings: GroupSettings,
        before: GroupsImage,
        alive: &BTreeSet<u64>,
        log: Log,
    ) -> Result<Groups, GroupError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| GroupError(settings.folder.clone(), error.into()))?;
        let ring = bell.try_clone().map_err(at(&settings.folder))?;
        let mut tree = Tree::make(settings)?;
        (tree.tenants, tree.servers) = (before.tenants, before.servers);
        let ended: Vec<u64> = tree.servers.keys().filter(|server| !alive.contains(server)).copied().collect();
        let missing = tree.missing();
        if !missing.is_empty() {
            let (folder, names) = (tree.settings.folder.display(), missing.join(", "));
            log.warn(format_args!("{folder}: the controllers {names} are not delegated: their limits have no effect"));
        }
        let empty = Arc::new(Mutex::new(Vec::new()));
        let (jobs, work) = channel();
        let (theirs, root) = (empty.clone(), tree.root.clone());
        let whole = move || Worker { tree, empty: theirs, bell: ring, log, ending: Vec::new() }.run(&work);
        let thread = std::thread::Builder::new().name("cgroups".into()).spawn(whole).map_err(at(&root))?;
        let groups = Groups { jobs: Some(jobs), thread: Some(thread), empty, bell };
        ended.into_iter().for_each(|server| groups.end(server));
        Ok(groups)
    }

    /// The directories, when all that was told before is done.
    ///
    /// # Errors
    /// That takes too long.
    pub fn image(&self) -> io::Result<GroupsImage> {
        let (answer, answered) = sync_channel(1);
        self.tell(Job::Tell(answer));
        let late = |_| io::Error::other("processes are still being moved into control groups; try again");
        answered.recv_timeout(IMAGE_TIMEOUT).map_err(late)
    }

    pub fn start(&self, server: u64, processes: Vec<u32>) {
        self.tell(Job::Start { server, processes });
    }

    pub fn join(&self, server: u64, tenant: &str) {
        self.tell(Job::Join { server, tenant: tenant.to_owned() });
    }

    /// Kills all that is left of an API server; `take_empty` tells when nothing is.
    pub fn end(&self, server: u64) {
        self.tell(Job::End { server });
    }

    /// API servers of which nothing is left.
    pub fn take_empty(&self) -> Vec<u64> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.empty.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Readable when `take_empty` has something.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn tell(&self, job: Job) {
        // The thread ends with this value only.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        drop(self.jobs.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Worker {
    tree: Tree,
    empty: Arc<Mutex<Vec<u64>>>,
    bell: OwnedFd,
    log: Log,
    /// Not empty yet.
    ending: Vec<u64>,
}

impl Worker {
    fn run(mut self, work: &Receiver<Job>) {
        let mut pause = Duration::from_millis(1);
        loop {
            let job = match self.ending.is_empty() {
                true => work.recv().map_err(|_| std::sync::mpsc::RecvTimeoutError::Disconnected),
                false => work.recv_timeout(pause),
            };
            match job {
                Ok(job) => {
                    pause = Duration::from_millis(1);
                    self.work(job);
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => pause = (2 * pause).min(LONGEST_PAUSE),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
            self.look();
        }
        self.tree.remove_all();
    }

    fn work(&mut self, job: Job) {
        let done = match job {
            Job::Start { server, processes } => self.tree.start(server, &processes),
            Job::Join { server, tenant } => self.tree.join(server, &tenant),
            Job::End { server } => {
                self.ending.push(server);
                Ok(())
            }
            Job::Tell(answer) => {
                // Who asked may not wait any more.
                let _ = answer.try_send(self.tree.image());
                Ok(())
            }
        };
        if let Err(error) = done {
            self.log.warn(format_args!("a control group: {error}"));
        }
    }

    fn look(&mut self) {
        let (tree, empty, bell) = (&mut self.tree, &self.empty, &self.bell);
        self.ending.retain(|server| {
            if !tree.end(*server) {
                return true;
            }
            empty.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(*server);
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            false
        });
    }
}

/// The directories.
struct Tree {
    settings: GroupSettings,
    /// This node's: others may use the same folder.
    root: PathBuf,
    /// Tenants' directories, by their names, which may not be such of files.
    tenants: BTreeMap<String, PathBuf>,
    /// API servers' directories: the first one from before a tenant is known, then that in its tenant's.
    servers: BTreeMap<u64, Vec<PathBuf>>,
}

const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

impl Tree {
    fn make(settings: GroupSettings) -> Result<Tree, GroupError> {
        let folder = &settings.folder;
        if !folder.join("cgroup.procs").is_file() {
            return Err(GroupError(folder.clone(), io::Error::other("no cgroup v2 directory")));
        }
        remove_stale(folder);
        let root = folder.join(format!("aviary-{}", std::process::id()));
        match fs::create_dir(&root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(GroupError(root, error)),
            _ => {}
        }
        step_aside(folder);
        enable(folder);
        enable(&root);
        Ok(Tree { settings, root, tenants: BTreeMap::new(), servers: BTreeMap::new() })
    }

    fn image(&self) -> GroupsImage {
        let folder = self.settings.folder.clone();
        GroupsImage { folder, tenants: self.tenants.clone(), servers: self.servers.clone() }
    }

    /// Controllers that the groups do not have.
    fn missing(&self) -> Vec<&'static str> {
        let has = fs::read_to_string(self.root.join("cgroup.subtree_control")).unwrap_or_default();
        CONTROLLERS.into_iter().filter(|name| has.split_whitespace().all(|word| word != *name)).collect()
    }

    fn start(&mut self, server: u64, processes: &[u32]) -> Result<(), GroupError> {
        let group = make_group(&self.root.join(format!("server-{server}")), &self.settings.session)?;
        self.servers.entry(server).or_default().push(group.clone());
        processes.iter().try_for_each(|process| move_to(&group, *process))
    }

    fn join(&mut self, server: u64, tenant: &str) -> Result<(), GroupError> {
        let folder = match self.tenants.get(tenant) {
            Some(folder) => folder.clone(),
            None => {
                let folder = self.root.join(format!("tenant-{}", self.tenants.len()));
                let folder = make_group(&folder, &self.settings.of_tenant(tenant))?;
                enable(&folder);
                self.tenants.insert(tenant.to_owned(), folder.clone());
                folder
            }
        };
        let group = make_group(&folder.join(format!("server-{server}")), &self.settings.session)?;
        let known = self.servers.entry(server).or_default();
        let before = known.first().cloned();
        known.push(group.clone());
        let Some(before) = before else { return Ok(()) };
        // Processes that are started meanwhile are in the group of the one that started them.
        for _ in 0..MOVES {
            let processes = processes_of(&before);
            if processes.is_empty() {
                break;
            }
            processes.iter().try_for_each(|process| move_to(&group, *process))?;
        }
        Ok(())
    }

    /// Kills what is left of an API server. True: nothing is, and its directories are removed.
    fn end(&mut self, server: u64) -> bool {
        let Some(known) = self.servers.get_mut(&server) else { return true };
        known.retain(|group| {
            // Before Linux 5.14 there is no such file; the process 1 of a PID namespace does the same.
            let _ = fs::write(group.join("cgroup.kill"), "1");
            match fs::remove_dir(group) {
                Ok(()) => false,
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            }
        });
        let empty = known.is_empty();
        if empty {
            self.servers.remove(&server);
        }
        empty
    }

    fn remove_all(&mut self) {
        let mut waited = Duration::ZERO;
        let pause = Duration::from_millis(5);
        loop {
            let servers: Vec<u64> = self.servers.keys().copied().collect();
            let left = servers.into_iter().filter(|server| !self.end(*server)).count();
            if left == 0 || waited >= LAST_WAIT {
                break;
            }
            std::thread::sleep(pause);
            waited += pause;
        }
        for folder in self.tenants.values().chain([&self.root]) {
            // One that is not empty stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Removes what nodes that were killed left behind. Directories with processes stay.
fn remove_stale(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("aviary-")).and_then(|id| id.parse::<u32>().ok());
        if id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
            remove_empty(&entry.path(), 3);
        }
    }
}

/// A directory and those in it, so many levels deep: a node's, a tenant's, an API server's.
fn remove_empty(folder: &Path, depth: u32) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path(), depth - 1);
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Rounds in which processes are moved that others started meanwhile.
const MOVES: usize = 64;

fn make_group(path: &Path, limits: &GroupLimits) -> Result<PathBuf, GroupError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(GroupError(path.to_owned(), error)),
        _ => {}
    }
    let values = [("memory.max", limits.memory), ("pids.max", limits.processes), ("cpu.weight", limits.cpu_weight)];
    for (file, value) in values {
        let file = path.join(file);
        if let Some(value) = value.filter(|_| file.exists()) {
            fs::write(&file, value.to_string()).map_err(at(&file))?;
        }
    }
    // All of it, or a process of the vendor's library alone would be missing.
    if limits.memory.is_some() {
        let _ = fs::write(path.join("memory.oom.group"), "1");
    }
    Ok(path.to_owned())
}

/// Controllers of a directory's children, as far as they were delegated; one by one, since one that is missing refuses all.
fn enable(folder: &Path) {
    for name in CONTROLLERS {
        let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{name}"));
    }
}

fn processes_of(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|process| *process != 0).collect()
}

/// One that has ended needs no group.
fn move_to(group: &Path, process: u32) -> Result<(), GroupError> {
    let file = group.join("cgroup.procs");
    match fs::write(&file, process.to_string()) {
        Err(error) if error.raw_os_error() == Some(NO_PROCESS) => Ok(()),
        other => other.map_err(at(&file)),
    }
}

/// `ESRCH`.
const NO_PROCESS: i32 = 3;

#[cfg(test)]
#[path = "cgroups_tests.rs"]
mod tests;
