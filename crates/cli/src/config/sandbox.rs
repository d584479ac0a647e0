//! The sandbox of API servers, as `aviary serve` and `aviary doctor` see it.

use crate::apis::{Api, SandboxNeeds};
use crate::config::SandboxConfig;
use anyhow::{anyhow, bail};
use aviary_node::{PrivateDir, SandboxSettings, admin_path, secret_path};
use aviary_sandbox::{
    Mode, Walls,
    namespaces::Namespace,
    probe::Found,
    root::SYSTEM,
    shown::own_file_in,
    system_calls::{Allowed, Call, NEVER, REFUSED, Requests},
};
use aviary_server::process::sandboxing::{DEVICES, VENDORS};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Answer of a node to the question of sandboxes.
#[derive(Debug, PartialEq)]
pub enum Choice {
    /// As the settings say.
    Sandboxes(SandboxSettings),
    /// None, and the reason if the operator did not choose that.
    None(Option<String>),
}

/// Users of a node's API servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Each tenant's have one of their own.
    Own,
    /// All are root.
    Root,
    /// All are the node's, which is not root.
    Shared,
}

/// True if a node without sandboxes is not to start.
pub fn is_wanted(told: Option<Mode>, file: &SandboxConfig) -> bool {
    told == Some(Mode::On) || told.is_none() && file.mode.as_deref() == Some(Mode::On.name())
}

/// `told` by the command line; `tried`: which walls this machine can have.
pub fn choose(
    told: Option<Mode>,
    file: &SandboxConfig,
    users: Users,
    apis: &[Api],
    tried: impl FnOnce() -> Result<Found, String>,
) -> anyhow::Result<Choice> {
    check(file)?;
    let text =
        file.mode.as_deref().map(str::parse).transpose().map_err(|error: String| anyhow!("[sandbox] mode: {error}"))?;
    let mode = told.or(text).unwrap_or_default();
    if mode == Mode::Off {
        return Ok(Choice::None(None));
    }
    let name = mode.name();
    let walls = match walls(users, tried) {
        Ok(walls) => walls,
        Err(reason) if mode == Mode::Auto => return Ok(Choice::None(Some(reason))),
        Err(reason) => bail!("--sandbox {name}: {reason}"),
    };
    if mode == Mode::Log && walls == Walls::Landlock {
        bail!("--sandbox {name}: not possible on this machine: the node cannot create namespaces");
    }
    let silent: Vec<&str> = apis.iter().filter(|api| api.sandbox.is_none()).map(|api| api.name.as_str()).collect();
    if mode == Mode::Auto && !silent.is_empty() {
        return Ok(Choice::None(Some(format!("no `sandbox` block in the specification of {}", silent.join(", ")))));
    }
    let records = mode == Mode::Log;
    let mut settings = SandboxSettings { walls: walls.name().into(), ..settings(file, apis, records) };
    if walls == Walls::Landlock {
        without_sockets(&mut settings, file);
    }
    Ok(Choice::Sandboxes(settings))
}

/// Calls that lead to the sockets of other processes. Where Landlock alone is the wall these are in sight, and an API server is
/// the owner of those of the node and of its user: no API gets these calls there, which CUDA needs for MPS only.
const SOCKET_CALLS: &[&str] = &["socket", "connect", "bind", "listen", "accept", "accept4", "socketpair"];

/// What the operator has named stays allowed; [`warning`] says what that opens.
fn without_sockets(settings: &mut SandboxSettings, file: &SandboxConfig) {
    settings.system_calls.retain(|name| !SOCKET_CALLS.contains(&name.as_str()) || file.system_calls.contains(name));
}

/// What is open although there are sandboxes; `None`: nothing that is worth a line at each start.
pub fn warning(settings: &SandboxSettings) -> Option<String> {
    if settings.walls != Walls::Landlock.name() {
        return None;
    }
    let opened: Vec<&str> =
        settings.system_calls.iter().map(String::as_str).filter(|name| SOCKET_CALLS.contains(name)).collect();
    let sockets = match opened.is_empty() {
        true => "APIs have no sockets (CUDA works without MPS)".to_owned(),
        false => format!(
            "[sandbox] system_calls allows {}: tenants can reach unix sockets of this user, for instance of a message bus",
            opened.join(", ")
        ),
    };
    Some(format!(
        "sandboxes have no namespaces on this machine: API servers, which have the node's user id, see the host's processes and \
         share the user's limits; {sockets}"
    ))
}

/// Files of the node that sandboxes never show.
pub fn hidden<const N: usize>(socket: &Path, others: [Option<&Path>; N]) -> Vec<PathBuf> {
    let sockets = [socket.to_owned(), admin_path(socket), secret_path(socket), socket.with_extension("lock")];
    sockets.into_iter().chain(others.into_iter().flatten().map(Path::to_owned)).collect()
}

/// A node whose operator wants sandboxes in any case does not start where they would show what is hidden. (With `auto` these
/// paths are left out, with a warning.)
///
/// # Errors
/// The first such path of `shown`.
pub fn check_shown(hidden: &[PathBuf], shown: impl IntoIterator<Item = PathBuf>) -> anyhow::Result<()> {
    for path in SYSTEM.iter().map(PathBuf::from).chain(shown) {
        if let Some(file) = own_file_in(&path, hidden) {
            let (path, file) = (path.display(), file.display());
            bail!(
                "--sandbox on: API servers would see {file} of the node, because sandboxes show {path}: move one of them"
            );
        }
    }
    Ok(())
}

/// The walls around API servers of these users; the error says why there are none.
fn walls(users: Users, tried: impl FnOnce() -> Result<Found, String>) -> Result<Walls, String> {
    if users == Users::Root {
        return Err(
            "API servers run as root (api_server_users = \"none\" or not possible): a sandbox would not confine them"
                .into(),
        );
    }
    Ok(tried()?.walls)
}

fn check(file: &SandboxConfig) -> anyhow::Result<()> {
    if let Some(path) = file.read.iter().chain(&file.devices).find(|path| !path.is_absolute()) {
        bail!("[sandbox]: {}: expected an absolute path", path.display());
    }
    for name in &file.system_calls {
        let call: Call = name.parse().map_err(|error| anyhow!("[sandbox] system_calls: {error}"))?;
        if call.is_never_allowed() {
            bail!("[sandbox] system_calls: `{name}` cannot be allowed: it allows to leave the sandbox");
        }
    }
    for name in &file.share {
        name.parse::<Namespace>().map_err(|error| anyhow!("[sandbox] share: {error}"))?;
    }
    for text in &file.ioctls {
        text.parse::<Requests>().map_err(|error| anyhow!("[sandbox] ioctls: {error}"))?;
    }
    Ok(())
}

/// Sum of the APIs' specifications and the configuration.
fn settings(file: &SandboxConfig, apis: &[Api], records: bool) -> SandboxSettings {
    let needs = needs(apis.iter().map(|api| api.sandbox.as_ref()));
    let both = |a: &[PathBuf], b: &[PathBuf]| a.iter().chain(b).cloned().collect::<BTreeSet<_>>().into_iter().collect();
    let words = |a: &[String], b: &[String]| a.iter().chain(b).cloned().collect::<BTreeSet<_>>().into_iter().collect();
    SandboxSettings {
        read: both(&needs.read, &file.read),
        devices: both(&needs.devices, &file.devices),
        system_calls: words(&needs.system_calls, &file.system_calls),
        ioctls: words(&needs.ioctls, &file.ioctls),
        share: file.share.clone(),
        records,
        ..SandboxSettings::default()
    }
}

/// The sum of what some APIs need. One that names no files or no devices gets the usual ones.
fn needs<'a>(apis: impl Iterator<Item = Option<&'a SandboxNeeds>>) -> SandboxNeeds {
    let mut sum = SandboxNeeds::default();
    for api in apis {
        let api = api.cloned().unwrap_or_default();
        let usual = |paths: Vec<PathBuf>, usual: &[&str]| match paths.is_empty() {
            true => usual.iter().map(PathBuf::from).collect(),
            false => paths,
        };
        sum.read.extend(usual(api.read, VENDORS));
        sum.devices.extend(usual(api.devices, DEVICES));
        // A specification may name calls of several architectures.
        sum.system_calls.extend(api.system_calls.into_iter().filter(|name| name.parse::<Call>().is_ok()));
        sum.ioctls.extend(api.ioctls);
    }
    sum
}

/// Makes a sandbox in a process of its own; the result says what sandboxes of this machine lack.
pub fn try_one() -> Result<Found, String> {
    // The link survives the replacement of the file.
    let tried = Command::new("/proc/self/exe").args(["doctor", "--probe-sandbox"]).stdin(Stdio::null()).output();
    match tried {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let mut lines = text.lines();
            let walls = lines.next().unwrap_or_default().parse()?;
            Ok(Found { walls, weaknesses: lines.map(str::to_owned).collect() })
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(text.lines().next().unwrap_or("a process in a sandbox crashed without a message").to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The hidden half of [`try_one`].
pub fn probe() -> Result<Found, String> {
    // As a node's own homes: in a user namespace no directory can be shown that others have mounted something below.
    let homes = PrivateDir::create().map_err(|error| error.to_string())?;
    aviary_sandbox::probe::try_here(homes.path()).map_err(|error| error.to_string())
}

/// Sandboxes of this machine in words: what they are, and what is weaker than it could be.
pub fn described(found: &Found) -> String {
    std::iter::once(found.walls.described())
        .chain(found.weaknesses.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join("; ")
}

/// The walls of a sandbox in words (`aviary doctor --sandbox`): of API servers of `apis`, on a machine that was `tried`.
pub fn text(apis: &[Api], tried: &Result<Found, String>) -> String {
    let names = |calls: &[Call]| calls.iter().map(Call::name).collect::<Vec<_>>().join(" ");
    let needs = needs(apis.iter().map(|api| api.sandbox.as_ref()));
    let mut allowed = Allowed::usual();
    let calls = needs.system_calls.iter().filter_map(|name| name.parse().ok()).collect();
    let requests = needs.ioctls.iter().filter_map(|text| text.parse().ok()).collect();
    allowed.join(&Allowed { calls, requests });
    let refused: Vec<Call> =
        REFUSED.iter().chain(NEVER).filter(|call| !allowed.calls.contains(call)).copied().collect();
    let paths = |usual: &[&str], more: &[PathBuf]| {
        let more = more.iter().map(|path| path.display().to_string());
        usual.iter().map(|path| (*path).to_owned()).chain(more).collect::<Vec<_>>().join(" ")
    };
    let requests: Vec<String> = allowed.requests.iter().map(Requests::to_string).collect();
    let walls = match tried {
        Ok(found) => described(found),
        Err(reason) => format!("none on this machine: {reason}"),
    };
    format!(
        "Sandbox: {walls}.\n\n{} system calls are allowed:\n{}\n\nAllowed ioctl requests, by type or number: {}; others fail with EPERM.\n\n\
         {} system calls fail with EPERM, all others end the process:\n{}\n\n\
         Readable: {}\nand the directories of the vendors' libraries and API modules, and [sandbox] read of node.toml.\n\
         Writable: its own /tmp, /dev/shm and its tenant's home.\n\
         Devices: {} and [sandbox] devices of node.toml.\n",
        allowed.calls.len(),
        names(&allowed.calls),
        requests.join(" "),
        refused.len(),
        names(&refused),
        paths(SYSTEM, &needs.read),
        paths(&[], &needs.devices),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(name: &str, sandbox: Option<SandboxNeeds>) -> Api {
        Api {
            name: name.into(),
            version: "1".into(),
            soname: "libx.so.1".into(),
            directory: PathBuf::new(),
            library: PathBuf::new(),
            launch: Vec::new(),
            functions: Vec::new(),
            resources: Vec::new(),
            device_resources: Vec::new(),
            policy: None,
            sandbox,
        }
    }

    fn needing(calls: &[&str], devices: &[&str]) -> SandboxNeeds {
        SandboxNeeds {
            system_calls: calls.iter().map(|name| (*name).to_owned()).collect(),
            devices: devices.iter().map(PathBuf::from).collect(),
            ..SandboxNeeds::default()
        }
    }

    #[test]
    fn sandbox_is_on_where_every_api_says_what_it_needs() {
        let file = SandboxConfig::default();
        let good = [api("one", Some(needing(&["flock"], &["/dev/one"]))), api("two", Some(SandboxNeeds::default()))];
        let silent = [good[0].clone(), api("three", None)];
        let found = |walls| Ok(Found { walls, weaknesses: Vec::new() });
        let good_walls = || found(Walls::Namespaces);
        let choose =
            |told, users, apis: &[Api], tried: Result<Found, String>| choose(told, &file, users, apis, || tried);
        let reason = |choice| match choice {
            Ok(Choice::None(Some(reason))) => reason,
            other => panic!("{other:?}"),
        };
        let Ok(Choice::Sandboxes(on)) = choose(None, Users::Own, &good, good_walls()) else { panic!("on by itself") };
        assert_eq!(on.system_calls, ["flock"]);
        assert!(on.devices.contains(&"/dev/one".into()) && on.devices.contains(&"/dev/dri".into()), "{on:?}");
        assert!(reason(choose(None, Users::Own, &silent, good_walls())).contains("three"));
        let none = || Err("no namespaces".into());
        assert_eq!(reason(choose(None, Users::Own, &good, none())), "no namespaces");
        assert!(choose(Some(Mode::On), Users::Own, &good, none()).is_err());
        // A node that is not root has the walls that there are.
        for walls in [Walls::UserNamespace, Walls::Landlock] {
            let Ok(Choice::Sandboxes(weaker)) = choose(None, Users::Shared, &good, found(walls)) else {
                panic!("{walls:?}")
            };
            assert_eq!(weaker.walls.parse(), Ok(walls));
            assert_eq!(choose(Some(Mode::Log), Users::Shared, &good, found(walls)).is_ok(), walls != Walls::Landlock);
        }
        assert!(reason(choose(None, Users::Root, &good, good_walls())).contains("run as root"));
        // The operator's word holds.
        assert_eq!(choose(Some(Mode::Off), Users::Own, &good, good_walls()).unwrap(), Choice::None(None));
        assert!(matches!(choose(Some(Mode::On), Users::Own, &silent, good_walls()), Ok(Choice::Sandboxes(_))));
        assert!(choose(Some(Mode::On), Users::Root, &good, good_walls()).is_err());
    }

    #[test]
    fn landlock_alone_gives_no_api_a_socket() {
        let found = |walls| Ok(Found { walls, weaknesses: Vec::new() });
        let apis = [api("one", Some(needing(&["flock", "socket", "connect", "bind"], &[])))];
        let calls = |file: &SandboxConfig, walls| match choose(None, file, Users::Shared, &apis, || found(walls)) {
            Ok(Choice::Sandboxes(settings)) => (warning(&settings), settings.system_calls),
            other => panic!("{other:?}"),
        };
        let file = SandboxConfig::default();
        let (told, allowed) = calls(&file, Walls::Landlock);
        assert_eq!(allowed, ["flock"]);
        assert!(told.unwrap().contains("no sockets"));
        let (told, allowed) = calls(&file, Walls::UserNamespace);
        assert_eq!((told, allowed.len()), (None, 4));
        // The operator's word holds, and is told.
        let file = SandboxConfig { system_calls: vec!["connect".into()], ..file };
        let (told, allowed) = calls(&file, Walls::Landlock);
        assert_eq!(allowed, ["connect", "flock"]);
        assert!(told.unwrap().contains("allows connect"));
    }

    #[test]
    fn a_strict_node_shows_none_of_its_files() {
        let hidden = hidden(Path::new("/run/a/node.sock"), [Some(Path::new("/opt/a/node.toml"))]);
        let shown = |path: &str| check_shown(&hidden, [PathBuf::from(path)]);
        assert!(shown("/opt/a/lib").is_ok() && shown("/run/b").is_ok());
        for (path, file) in [("/opt/a", "node.toml"), ("/run", "node.sock"), ("/run/a/node.secret", "node.secret")] {
            let why = shown(path).unwrap_err().to_string();
            assert!(why.contains(file), "{why}");
        }
    }

    #[test]
    fn configuration_cannot_open_the_sandbox() {
        for (calls, ioctls, read) in
            [(&["ptrace"][..], &[][..], "/opt"), (&["nosuch"], &[], "/opt"), (&[], &["FF"], "/opt"), (&[], &[], "opt")]
        {
            let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            let file = SandboxConfig {
                read: vec![read.into()],
                system_calls: owned(calls),
                ioctls: owned(ioctls),
                ..SandboxConfig::default()
            };
            assert!(check(&file).is_err(), "{file:?}");
        }
    }

    #[test]
    fn text_names_what_an_api_adds() {
        let needs = SandboxNeeds { ioctls: vec!["F".into()], ..needing(&["flock", "socket"], &[]) };
        let tried = Ok(Found { walls: Walls::Landlock, weaknesses: vec!["old kernel".into()] });
        let text = text(&[api("one", Some(needs))], &tried);
        assert!(
            text.starts_with("Sandbox: file access restricted by Landlock") && text.contains("; old kernel."),
            "{text}"
        );
        let (allowed, refused) = text.split_once("calls fail with EPERM").unwrap();
        assert!(allowed.contains(" flock ") && allowed.contains(" socket ") && allowed.contains(" F"), "{text}");
        assert!(!refused.contains(" socket ") && refused.contains(" socketpair "), "{text}");
    }
}
