//! Tests of control groups, on directories that look like them and, where the test may make some, on real ones.

use crate::PrivateDir;
use crate::servers::cgroups::*;
use std::{process::Command, time::Instant};

/// Bounds a hang.
const HANG: Duration = Duration::from_secs(60);

/// A directory that looks like one of cgroup v2.
fn fake() -> PrivateDir {
    let directory = PrivateDir::create().unwrap();
    fs::write(directory.path().join("cgroup.procs"), "").unwrap();
    directory
}

fn settings(folder: &Path) -> GroupSettings {
    let limits = |memory, processes| GroupLimits { memory: Some(memory), processes: Some(processes), cpu_weight: None };
    GroupSettings {
        folder: folder.to_owned(),
        tenant: limits(1 << 30, 100),
        tenants: [("big".to_owned(), GroupLimits { memory: Some(2 << 30), ..GroupLimits::default() })].into(),
        session: limits(1 << 20, 10),
    }
}

#[test]
fn tenants_have_the_usual_limits_where_they_say_nothing() {
    let directory = fake();
    let settings = settings(directory.path());
    assert_eq!(settings.of_tenant("small").memory, Some(1 << 30));
    let big = settings.of_tenant("big");
    assert_eq!((big.memory, big.processes, big.cpu_weight), (Some(2 << 30), Some(100), None));
}

#[test]
fn limits_are_written_where_there_are_files_for_them() {
    let directory = fake();
    let group = directory.path().join("group");
    fs::create_dir(&group).unwrap();
    for file in ["memory.max", "cpu.weight"] {
        fs::write(group.join(file), "max").unwrap();
    }
    let limits = GroupLimits { memory: Some(4096), processes: Some(7), cpu_weight: Some(50) };
    make_group(&group, &limits).unwrap();
    let read = |file: &str| fs::read_to_string(group.join(file)).unwrap_or_default();
    assert_eq!((read("memory.max").as_str(), read("cpu.weight").as_str()), ("4096", "50"));
    assert!(!group.join("pids.max").exists(), "not delegated");
    assert_eq!(read("memory.oom.group"), "1");
}

#[test]
fn what_killed_nodes_left_is_removed() {
    let directory = fake();
    let stale = directory.path().join("aviary-4294967294");
    let (own, others) =
        (directory.path().join(format!("aviary-{}", std::process::id())), directory.path().join("aviary-x"));
    for folder in [stale.join("tenant-0/server-1"), own.clone(), others.clone()] {
        fs::create_dir_all(folder).unwrap();
    }
    remove_stale(directory.path());
    assert!(!stale.exists() && own.exists() && others.exists());
}

#[test]
fn directories_of_other_file_systems_are_refused() {
    let directory = PrivateDir::create().unwrap();
    assert!(Tree::make(settings(directory.path())).is_err());
    assert!(Groups::new(settings(directory.path()), Log::silent()).is_err());
}

/// Where processes can be moved: a directory of a mounted hierarchy that this test may write.
fn real() -> Option<PathBuf> {
    let folder = hierarchy()?;
    let trial = folder.join(format!("aviary-trial-{}", std::process::id()));
    fs::create_dir(&trial).ok()?;
    fs::remove_dir(&trial).ok()?;
    Some(folder)
}

#[test]
fn nothing_of_an_api_server_is_left_when_its_group_is_told_to_be_empty() {
    let Some(folder) = real() else { return };
    // Limits may be missing there; ends are not.
    let settings = GroupSettings { folder: folder.clone(), ..GroupSettings::default() };
    let groups = Groups::new(settings, Log::silent()).unwrap();
    let root = folder.join(format!("aviary-{}", std::process::id()));
    // A process whose own children go on without it.
    let mut server = Command::new("sh")
        .args(["-c", "read go; sleep 600 & sleep 600 & sleep 600"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    groups.start(7, vec![server.id()]);
    let first = root.join("server-7");
    let until = |what: &str, condition: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < HANG, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until("it is in a group", &|| processes_of(&first) == [server.id()]);
    drop(server.stdin.take());
    until("it has children", &|| processes_of(&first).len() == 4);
    groups.join(7, "../no name of a file");
    let second = root.join("tenant-0/server-7");
    until("all are in their tenant's", &|| processes_of(&second).len() == 4 && processes_of(&first).is_empty());
    groups.end(7);
    let mut empty = Vec::new();
    let begin = Instant::now();
    while empty.is_empty() {
        assert!(begin.elapsed() < HANG);
        empty = groups.take_empty();
        // Its child is this test's to reap; until then it is in no group any more.
        let _ = server.try_wait();
    }
    assert_eq!(empty, [7]);
    assert!(!second.exists() && !first.exists());
    server.wait().unwrap();
    drop(groups);
    assert!(!root.exists());
}

#[test]
fn directory_of_a_node_is_the_one_that_it_has_left() {
    let cases = [
        ("system.slice/aviary.service/aviary-node-7", "system.slice/aviary.service"),
        ("aviary-node-7", ""),
        ("a/aviary-node-x", "a/aviary-node-x"),
        ("a/aviary-7", "a/aviary-7"),
    ];
    for (own, folder) in cases {
        assert_eq!(before_step(own), folder);
    }
}

#[test]
fn program_that_takes_over_has_the_groups_of_api_servers_that_live_and_ends_the_others() {
    let directory = fake();
    let root = directory.path().join(format!("aviary-{}", std::process::id()));
    let tenant = GroupLimits { processes: Some(100), ..GroupLimits::default() };
    let configured = GroupSettings { folder: directory.path().to_owned(), tenant, ..GroupSettings::default() };
    let before = Groups::new(configured.clone(), Log::silent()).unwrap();
    for server in [1, 2] {
        before.start(server, Vec::new());
        before.join(server, "a");
    }
    let image = before.image().unwrap();
    // Its program is gone without an end.
    std::mem::forget(before);
    let folder_of = |server: u64| root.join(format!("tenant-0/server-{server}"));
    assert!(folder_of(1).is_dir() && folder_of(2).is_dir());
    let settings = image.settings(Some(GroupSettings { folder: "/elsewhere".into(), ..configured.clone() }));
    assert_eq!(settings, configured);
    let after = Groups::again(settings, image, &[2].into(), Log::silent()).unwrap();
    after.join(3, "a");
    assert_eq!(after.image().unwrap().tenants.len(), 1);
    // The kernel would kill what is in it; here it is a file.
    let is_killed = |server| folder_of(server).join("cgroup.kill").exists();
    let begin = Instant::now();
    while !is_killed(1) {
        assert!(begin.elapsed() < HANG);
    }
    assert!(folder_of(3).is_dir() && !is_killed(2) && !is_killed(3));
}
