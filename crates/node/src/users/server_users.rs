//! User ids of API servers: each tenant's run as a user of their own.
//!
//! An attacker who takes one tenant's API server over can then neither signal another's nor read its memory or its
//! files; only root could have. An id belongs to its tenant until the tenant is idle and another one needs it: then what the
//! tenant had in files is removed first, and no process of the id is left.

use crate::attach::private::PrivateDir;
use crate::error::NodeError;
use crate::tenants::tenant::name_of_user;
use crate::users::claims::{self, Claims};
use crate::users::homes::{self, Homes, make_folder, place_of};
use crate::users::removal::remove_aside;
use aviary_control::ServerUser;
use aviary_sandbox::mounts;
use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, Permissions},
    io,
    ops::RangeInclusive,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::Path,
    str::FromStr,
};

/// Ids that are nobody else's on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRange(RangeInclusive<u32>);

impl Default for UserRange {
    /// Among those that systemd's table of user ids leaves unused, and above the ones of containers.
    fn default() -> Self {
        Self(1_900_000_000..=1_900_065_535)
    }
}

impl FromStr for UserRange {
    type Err = String;

    /// `FIRST-LAST`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: expected FIRST-LAST, such as 200000-265535, without 0, or none");
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        // The highest one means nobody to the kernel.
        if first == 0 || last < first || last == u32::MAX { Err(wrong()) } else { Ok(Self(first..=last)) }
    }
}

impl UserRange {
    /// First and last.
    pub fn bounds(&self) -> [u32; 2] {
        [*self.0.start(), *self.0.end()]
    }

    pub fn between([first, last]: [u32; 2]) -> Self {
        Self(first..=last)
    }

    /// True if a user is one that API servers have.
    pub fn has(&self, uid: u32) -> bool {
        self.0.contains(&uid)
    }
}

/// The capabilities that are needed to give ids, files and signals to processes of other users: CHOWN, DAC_OVERRIDE,
/// KILL, SETGID, SETUID.
const CAPABILITIES: u64 = 1 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7;

impl UserRange {
    /// Checks that this process may start API servers under these ids; the error says why not.
    pub fn check(&self) -> Result<(), String> {
        let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
        if capabilities & CAPABILITIES != CAPABILITIES {
            return Err("the node is not root, or root without its capabilities".into());
        }
        for map in ["uid_map", "gid_map"] {
            let text = fs::read_to_string(format!("/proc/self/{map}")).map_err(|error| error.to_string())?;
            if !text.lines().any(|line| self.lies_in(line)) {
                let (first, last) = (self.0.start(), self.0.end());
                return Err(format!(
                    "the user ids {first} to {last} do not exist in the node's user namespace ({map})"
                ));
            }
        }
        Ok(())
    }

    /// A line of `uid_map`: first id inside, first id outside, how many.
    fn lies_in(&self, line: &str) -> bool {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [inside, _, count] = numbers[..] else { return false };
        inside <= u64::from(*self.0.start()) && u64::from(*self.0.end()) < inside + count
    }
}

/// Ids of API servers.
#[derive(Debug)]
pub(crate) enum Ids {
    /// One for each tenant.
    Range {
        range: UserRange,
        /// The next one to give out, unless another node has it.
        next: u32,
        /// `None`: nobody can tell what other nodes have.
        claims: Option<Claims>,
    },
    /// The node's, which is not root: sandboxes keep its tenants apart.
    Shared(u32),
}

/// What comes of the question for a tenant's user.
#[derive(Debug, PartialEq, Eq)]
pub enum NewUser {
    /// `None`: the node's own.
    Found(Option<ServerUser>),
    /// All ids are in use, or kept for others.
    Full,
}

/// The tenant of each id.
#[derive(Debug)]
pub struct ServerUsers {
    pub(crate) ids: Ids,
    pub(crate) by_tenant: BTreeMap<String, ServerUser>,
    /// Ids that tenants had, claimed and without files.
    pub(crate) free: Vec<u32>,
    /// Of helper processes, by their names.
    pub(crate) helpers: BTreeMap<String, u32>,
    /// Groups that devices belong to.
    groups: Vec<u32>,
    /// Files of vendors' libraries, such as compiled kernels, a folder for each tenant.
    pub(crate) homes: PrivateDir,
    /// The same for memory that API servers of a tenant share by names, but of tenants whose homes are of limited size: these have
    /// it beside them. In memory: a driver may pin it, and the kernel pins no pages of other file systems for long. `None`: there is
    /// no such place, folders beside the homes serve, and API servers of the node's own user share none.
    pub(crate) shared_memory: Option<PrivateDir>,
    pub(crate) mounts: Homes,
    /// The tenant of the node's own user, where that belongs to no other one.
    own: String,
}

impl ServerUsers {
    /// `claims`: where the nodes of this machine say which ids they have.
    pub fn new(range: UserRange, claims: &Path) -> Result<Self, NodeError> {
        let (next, claims) = (*range.0.start(), Claims::new(claims).ok());
        Self::with(Ids::Range { range, next, claims })
    }

    /// Of a node that is not root and whose API servers are in sandboxes.
    pub fn shared() -> Result<Self, NodeError> {
        Self::with(Ids::Shared(rustix::process::geteuid().as_raw()))
    }

    fn with(ids: Ids) -> Result<Self, NodeError> {
        let homes = PrivateDir::create()?;
        // Into it, not to what is in it.
        fs::set_permissions(homes.path(), Permissions::from_mode(0o711))
            .map_err(|error| NodeError::PrivateDirMode(homes.path().to_owned(), error))?;
        let limited = matches!(ids, Ids::Range { .. }) && mounts::try_here(homes.path()).is_ok();
        let shared_memory = in_memory().then(|| PrivateDir::create_in(Path::new(SHARED_MEMORY), 0o711)).transpose()?;
        if let Some(folder) = &shared_memory {
            // Independent of the umask.
            fs::set_permissions(folder.path(), Permissions::from_mode(0o711))
                .map_err(|error| NodeError::PrivateDirMode(folder.path().to_owned(), error))?;
        }
        let mounts = Homes { limited, ..Homes::default() };
        Ok(Self::within(ids, homes, shared_memory, mounts))
    }

    /// Without any tenant so far.
    pub(crate) fn within(ids: Ids, homes: PrivateDir, shared_memory: Option<PrivateDir>, mounts: Homes) -> Self {
        let own = name_of_user(rustix::process::geteuid().as_raw());
        let groups = device_groups(Path::new("/dev"));
        Self {
            ids,
            by_tenant: BTreeMap::new(),
            free: Vec::new(),
            helpers: BTreeMap::new(),
            groups,
            homes,
            shared_memory,
            mounts,
            own,
        }
    }

    /// The directory with a home for each id.
    pub fn homes(&self) -> &Path {
        self.homes.path()
    }

    /// The directory with the tenants' shared memory, if it is not that of the homes.
    pub fn shared_memory(&self) -> Option<&Path> {
        self.shared_memory.as_ref().map(PrivateDir::path)
    }

    /// True if homes are limited.
    pub fn limits_homes(&self) -> bool {
        self.mounts.limited
    }

    /// The tenant's last API server has ended: nothing of its files is left, where homes are limited.
    pub fn clear_home(&mut self, tenant: &str) {
        if let Some(user) = self.by_tenant.get(tenant) {
            self.mounts.clear(tenant, user);
        }
    }

    /// What the tenant's home may hold from here on.
    ///
    /// # Errors
    /// It holds more, and keeps its size.
    pub fn resize_home(&self, tenant: &str, bytes: u64) -> io::Result<()> {
        self.by_tenant.get(tenant).map_or(Ok(()), |user| self.mounts.resize(tenant, user, bytes))
    }

    /// True if no other node of this machine can have the same ids.
    pub fn are_claimed(&self) -> bool {
        matches!(&self.ids, Ids::Shared(_) | Ids::Range { claims: Some(_), .. })
    }

    /// Tenants that have an id.
    pub fn tenants(&self) -> impl Iterator<Item = &String> {
        self.by_tenant.keys()
    }

    pub fn has(&self, tenant: &str) -> bool {
        self.by_tenant.contains_key(tenant)
    }

    /// The user of a tenant's API servers; `None`: the node's own. That holds only where the kernel says that the guest
    /// is the node's own user (`own`), from whom there is nothing to protect, and no tenant has that user. The name
    /// alone decides nothing: another guest that got it would be root.
    ///
    /// `reserved`: so many ids stay free, though never more than half of the range. `bytes`: what its home and its shared memory
    /// may hold together, where that can be limited.
    ///
    /// # Errors
    /// The tenant's folders cannot be made, or no other node be asked for its ids.
    pub fn of(&mut self, tenant: &str, own: bool, reserved: usize, bytes: u64) -> Result<NewUser, NodeError> {
        if own && tenant == self.own && matches!(self.ids, Ids::Range { .. }) {
            return Ok(NewUser::Found(None));
        }
        if let Some(user) = self.by_tenant.get(tenant).cloned() {
            self.mounts.furnish(tenant, &user, bytes)?;
            return Ok(NewUser::Found(Some(user)));
        }
        let failed = |why: String| NodeError::ServerUser(tenant.to_owned(), why);
        let id = match self.are_left(reserved) {
            true => self.unclaimed().map_err(|error| failed(format!("{}: {error}", claims::FOLDER)))?,
            false => None,
        };
        let Some(id) = id else { return Ok(NewUser::Full) };
        let (name, owner) = match self.ids {
            Ids::Range { .. } => (id.to_string(), Some(id)),
            Ids::Shared(_) => (self.free_folder(), None),
        };
        let make = |folder: &Path, owner: Option<u32>| {
            make_folder(folder, owner).map_err(|error| failed(format!("{}: {error}", folder.display())))
        };
        let place = self.homes.path().join(&name);
        let (groups, mounted) = (self.groups.clone(), self.mounts.limited);
        let user = match mounted {
            true => {
                let (home, shared_memory) = (place.join(homes::HOME), place.join(homes::SHARED_MEMORY));
                ServerUser { id, groups, home, shared_memory, mounted }
            }
            false => {
                // Where the tenant cannot put anything in its place.
                let beside = || place.with_extension("shm");
                let shared_memory = self.shared_memory().map_or_else(beside, |folder| folder.join(&name));
                ServerUser { id, groups, home: place.clone(), shared_memory, mounted }
            }
        };
        make(&place, owner.filter(|_| !mounted))?;
        match mounted {
            true => self.mounts.furnish(tenant, &user, bytes)?,
            false => make(&user.shared_memory, owner)?,
        }
        self.by_tenant.insert(tenant.to_owned(), user.clone());
        Ok(NewUser::Found(Some(user)))
    }

    /// True if more ids than `reserved` can be given out.
    fn are_left(&self, reserved: usize) -> bool {
        let Ids::Range { range, next, .. } = &self.ids else { return true };
        let [first, last] = range.bounds();
        let whole = u64::from(last - first) + 1;
        let left = (u64::from(last) + 1).saturating_sub(u64::from(*next)) + self.free.len() as u64;
        left > (reserved as u64).min(whole / 2)
    }

    /// The name of a folder that no tenant of a node without ids of its own has.
    fn free_folder(&self) -> String {
        let is_free = |number: &usize| !self.homes.path().join(number.to_string()).exists();
        (self.by_tenant.len()..).find(is_free).unwrap_or_default().to_string()
    }

    /// Takes the id of the first of these tenants, all of them idle, that can lose it: its files are out of their places, and no
    /// process has it.
    pub fn reclaim(&mut self, idle: &[String]) {
        let alive = matches!(self.ids, Ids::Range { .. }).then(users_with_processes);
        for tenant in idle {
            let Some(user) = self.by_tenant.get(tenant) else { continue };
            if alive.as_ref().is_some_and(|alive| alive.contains(&user.id)) {
                continue;
            }
            let (user, id) = (user.clone(), user.id);
            self.mounts.clear(tenant, &user);
            let moved = match user.mounted {
                // Nothing is in the place of the mount.
                true => fs::remove_dir(place_of(&user)),
                false => [&user.home, &user.shared_memory].into_iter().try_for_each(|folder| remove_aside(folder)),
            };
            // With a folder left the next tenant of the id would find it, or get no home: the id stays where it is.
            if moved.is_err() {
                continue;
            }
            self.by_tenant.remove(tenant);
            if matches!(self.ids, Ids::Range { .. }) {
                self.free.push(id);
            }
            return;
        }
    }
}

/// Users of all processes of the machine; without those in a namespace that this process cannot see, where no API server is.
fn users_with_processes() -> HashSet<u32> {
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_process));
    let users = processes.flat_map(|entry| {
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        line.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()
    });
    users.collect()
}

impl ServerUsers {
    /// The user of a helper process with this name; `None`: there are no users of their own.
    pub fn helper(&mut self, name: &str) -> Result<Option<u32>, NodeError> {
        if matches!(self.ids, Ids::Shared(_)) {
            return Ok(None);
        }
        if let Some(id) = self.helpers.get(name) {
            return Ok(Some(*id));
        }
        let failed = |why: String| NodeError::ServerUser(name.to_owned(), why);
        let id = self.unclaimed().map_err(|error| failed(format!("{}: {error}", claims::FOLDER)))?;
        let id = id.ok_or_else(|| failed("all user ids are in use".into()))?;
        self.helpers.insert(name.to_owned(), id);
        Ok(Some(id))
    }

    /// The next id that is no other node's, which is this one's from now on.
    fn unclaimed(&mut self) -> io::Result<Option<u32>> {
        if let Some(id) = self.free.pop() {
            return Ok(Some(id));
        }
        let (range, next, claims) = match &mut self.ids {
            Ids::Shared(id) => return Ok(Some(*id)),
            Ids::Range { range, next, claims } => (range, next, claims),
        };
        while range.0.contains(next) {
            let id = *next;
            // The highest id of all is in no range.
            *next += 1;
            if claims.as_mut().map_or(Ok(true), |claims| claims.claim(id))? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }
}

/// Where POSIX shared memory has its names.
const SHARED_MEMORY: &str = "/dev/shm";

/// True if files there are memory (tmpfs).
fn in_memory() -> bool {
    /// `TMPFS_MAGIC` of linux/magic.h.
    const TMPFS: i64 = 0x0102_1994;
    #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    rustix::fs::statfs(SHARED_MEMORY).is_ok_and(|found| found.f_type as i64 == TMPFS)
}

/// Groups without which accelerators' device files cannot be opened.
fn device_groups(devices: &Path) -> Vec<u32> {
    let accelerator = |name: &str| name.starts_with("nvidia") || ["dri", "accel", "kfd"].contains(&name);
    let mut groups: Vec<u32> = Vec::new();
    for entry in fs::read_dir(devices).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(accelerator) {
            let _ = collect_groups(&entry.path(), &mut groups);
        }
    }
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Root's group is no device's: it would open more than devices.
fn collect_groups(path: &Path, groups: &mut Vec<u32>) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            collect_groups(&entry?.path(), groups)?;
        }
    } else if found.file_type().is_char_device() && found.gid() != 0 && found.mode() & 0o060 == 0o060 {
        groups.push(found.gid());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::users::server_users::*;

    const BYTES: u64 = 1 << 20;

    #[test]
    fn ranges_are_read() {
        assert_eq!("5-9".parse(), Ok(UserRange(5..=9)));
        for wrong in ["", "5", "0-9", "9-5", "a-b", "5-4294967295", "-5"] {
            assert!(wrong.parse::<UserRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_user_namespace_may_lack_the_ids() {
        let range = UserRange(100..=199);
        assert!(range.lies_in("         0          0 4294967295"));
        assert!(range.lies_in("100 7 100") && !range.lies_in("100 7 99") && !range.lies_in("101 7 500"));
        assert!(!range.lies_in("") && !range.lies_in("0 0"));
    }

    fn found(answer: Result<NewUser, NodeError>) -> ServerUser {
        match answer {
            Ok(NewUser::Found(Some(user))) => user,
            other => panic!("{other:?}"),
        }
    }

    fn shared_helper() -> Option<u32> {
        ServerUsers::shared().unwrap().helper("gateways").unwrap()
    }

    #[test]
    fn each_tenant_has_its_own_id_and_the_range_ends() {
        if UserRange::default().check().is_err() {
            return; // only root may
        }
        let claims = PrivateDir::create().unwrap();
        let new = |range| ServerUsers::new(UserRange(range), claims.path()).unwrap();
        let mut users = new(70_000..=70_001);
        let own = users.own.clone();
        let one = found(users.of("one", false, 0, BYTES));
        assert_eq!(one, found(users.of("one", true, 0, BYTES)), "root as a member of a tenant");
        let two = found(users.of(&own, false, 0, BYTES));
        assert_eq!((one.id, two.id), (70_000, 70_001));
        let home = fs::metadata(&two.home).unwrap();
        assert_eq!((home.uid(), home.mode() & 0o777), (70_001, 0o700));
        let shared = fs::metadata(&two.shared_memory).unwrap();
        assert_eq!((shared.uid(), shared.mode() & 0o777), (70_001, 0o700));
        assert_eq!(users.of("three", false, 0, BYTES).unwrap(), NewUser::Full);
        assert_eq!(users.of(&own, true, 0, BYTES).unwrap(), NewUser::Found(None), "the kernel says so");
        // Gateways and VM devices have ids of the same range.
        let helper = new(70_003..=70_004).helper("gateways").unwrap();
        assert_eq!((helper, shared_helper()), (Some(70_003), None));
        // Another node of this machine.
        let mut others = new(70_000..=70_002);
        assert!(others.are_claimed());
        assert_eq!(found(others.of("one", false, 0, BYTES)).id, 70_002);
        assert_eq!(others.of("two", false, 0, BYTES).unwrap(), NewUser::Full);
        drop(users);
        // A node that is not root.
        let mut shared = ServerUsers::shared().unwrap();
        let (one, two) = (found(shared.of("one", false, 0, BYTES)), found(shared.of(&own, true, 0, BYTES)));
        assert_eq!((one.id, one.id), (two.id, rustix::process::geteuid().as_raw()));
        assert!(one.home != two.home && one.home.is_dir() && two.shared_memory.is_dir());
        assert_eq!(found(new(70_000..=70_002).of("two", false, 0, BYTES)).id, 70_000);
        shared.reclaim(&["one".to_owned()]);
        assert!(!one.home.exists() && !shared.has("one") && two.home.is_dir());
        let third = found(shared.of("three", false, 0, BYTES));
        assert!(third.home != two.home && third.home.is_dir());
    }

    #[test]
    fn an_idle_tenants_id_comes_back_without_its_files() {
        if UserRange::default().check().is_err() {
            return; // only root may
        }
        let claims = PrivateDir::create().unwrap();
        let mut users = ServerUsers::new(UserRange(70_100..=70_103), claims.path()).unwrap();
        let all = ["a", "b", "c"].map(|name| found(users.of(name, false, 0, BYTES)));
        assert_eq!(users.of("d", false, 1, BYTES).unwrap(), NewUser::Full, "the last one is kept for another");
        let last = found(users.of("listed", false, 0, BYTES));
        assert_eq!((last.id, users.of("d", false, 0, BYTES).unwrap()), (70_103, NewUser::Full));
        fs::create_dir_all(all[1].home.join("deep/er")).unwrap();
        fs::write(all[1].shared_memory.join("file"), "x").unwrap();
        users.reclaim(&["nobody".to_owned(), "b".to_owned(), "a".to_owned()]);
        let new = found(users.of("d", false, 0, BYTES));
        assert_eq!((new.id, users.has("b"), users.has("a")), (all[1].id, false, true));
        let left = |folder: &Path| fs::read_dir(folder).unwrap().count();
        assert_eq!((left(&new.home), left(&new.shared_memory)), (0, 0));
        // A process of the id is left behind.
        use std::os::unix::process::CommandExt;
        let mut stray = std::process::Command::new("sleep").arg("60").uid(all[0].id).spawn().unwrap();
        users.reclaim(&["a".to_owned()]);
        assert!(users.has("a") && all[0].home.is_dir());
        stray.kill().unwrap();
        stray.wait().unwrap();
        users.reclaim(&["a".to_owned()]);
        assert!(!users.has("a"));
    }

    /// `None`: this process cannot mount.
    fn limited() -> Option<(ServerUsers, PrivateDir)> {
        let range = UserRange::between([70_200, 70_203]);
        range.check().ok()?;
        let claims = PrivateDir::create().unwrap();
        let users = ServerUsers::new(range, claims.path()).unwrap();
        users.limits_homes().then_some((users, claims))
    }

    fn user(users: &mut ServerUsers, tenant: &str) -> ServerUser {
        match users.of(tenant, false, 0, BYTES) {
            Ok(NewUser::Found(Some(user))) => user,
            other => panic!("{other:?}"),
        }
    }

    fn fill(folder: &Path) -> io::Result<()> {
        fs::write(folder.join("file"), vec![1; BYTES as usize * 2])
    }

    #[test]
    fn a_home_holds_so_much_and_is_empty_after_the_last_api_server() {
        let Some((mut users, _claims)) = limited() else { return };
        let (one, two) = (user(&mut users, "one"), user(&mut users, "two"));
        assert!(one.mounted && fill(&one.home).is_err_and(|error| error.raw_os_error() == Some(libc_enospc())));
        // Of both folders together, and of nobody else.
        assert!(fs::write(one.shared_memory.join("file"), [1; 4096]).is_err());
        fs::write(two.home.join("file"), [1; 4096]).unwrap();
        assert_eq!(user(&mut users, "one"), one);
        assert!(one.home.join("file").exists(), "another API server finds it");
        users.clear_home("one");
        assert!(!one.home.exists() && two.home.join("file").exists());
        assert_eq!(user(&mut users, "one"), one);
        assert_eq!(fs::read_dir(&one.home).unwrap().count(), 0);
        users.resize_home("one", 4 * BYTES).unwrap();
        fill(&one.home).unwrap();
        assert!(users.resize_home("one", BYTES).is_err());
        users.reclaim(&["one".to_owned()]);
        assert!(!users.has("one") && !place_of(&one).exists());
        let homes = users.homes().to_owned();
        drop(users);
        assert!(!homes.exists());
    }

    fn libc_enospc() -> i32 {
        rustix::io::Errno::NOSPC.raw_os_error()
    }

    #[test]
    fn many_small_files_are_too_many() {
        let Some((mut users, _claims)) = limited() else { return };
        let home = user(&mut users, "one").home;
        let made = (0..5000).take_while(|number| fs::write(home.join(number.to_string()), "").is_ok()).count();
        assert!((500..5000).contains(&made), "{made}");
    }
}
