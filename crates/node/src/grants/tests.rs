use super::entrance;
use super::entry::GrantEntry;
use super::request::{Grant, GrantEntrance, GrantRequest, RevokeReport, SOCKET_NAME, Via, check_grant_name, check_key};
use super::store::{GrantStore, KEYS};
use super::table::{CLOCK_INTERVAL, Grants, MOST_UNASKED};
use crate::attach::private::PrivateDir;
use crate::tenants::tenant::DeviceLimitChange;
use aviary_control::Foreign;
use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, symlink},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn grant(name: &str) -> Grant {
    Grant::new(name, GrantEntrance::Socket(format!("/run/grants/{name}").into()))
}

fn request(grant: Grant) -> GrantRequest {
    GrantRequest { grant, lifetime: None, overcommit: false }
}

struct Place {
    directory: PrivateDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: PrivateDir::create().unwrap() }
    }

    fn folder(&self) -> PathBuf {
        self.directory.path().join("grants")
    }

    fn store(&self) -> GrantStore {
        GrantStore::new(self.folder(), None)
    }

    /// Names of what a node that starts now has, and what it says.
    fn loaded(&self) -> (Vec<String>, Vec<String>) {
        let (grants, notes) = self.store().load();
        (grants.into_iter().map(|grant| grant.name).collect(), notes)
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["", ".", "..", "../a", "a/b", "/a", ".a", "a b", "a\n", "ä", "uid-0", "others", &"x".repeat(101)] {
        assert!(check_grant_name(name).is_err(), "{name:?}");
        assert!(request(grant(name)).checked(at(0)).is_err(), "{name:?}");
    }
    for name in ["a", "k8s-0b6a3c1e-1111-2222-3333-444455556666", "a..b", "A_1.-", &"x".repeat(100)] {
        check_grant_name(name).unwrap();
    }
}

#[test]
fn values_that_cannot_be_are_told() {
    let wrong = |change: &dyn Fn(&mut Grant), expected: &str| {
        let mut grant = grant("a");
        change(&mut grant);
        let error = request(grant).checked(at(0)).unwrap_err().to_string();
        assert!(error.starts_with("grant `a`: ") && error.contains(expected), "{error}");
    };
    wrong(&|grant| grant.share = Some(0), "share");
    wrong(&|grant| grant.share = Some(101), "share");
    wrong(&|grant| grant.cap = Some(0), "cap");
    wrong(&|grant| grant.apis = Some(Vec::new()), "list of APIs is empty");
    wrong(&|grant| grant.only_devices = Some(Vec::new()), "list of devices is empty");
    wrong(&|grant| grant.only_devices = Some(vec!["x".repeat(65)]), "no name of a device");
    wrong(&|grant| grant.entrance = GrantEntrance::Socket("relative".into()), "no absolute path");
    wrong(&|grant| grant.entrance = GrantEntrance::Socket("/a/../b".into()), "no absolute path");
    wrong(&|grant| grant.entrance = GrantEntrance::Socket("/".into()), "no absolute path");
    wrong(&|grant| grant.entrance = GrantEntrance::Key("00".into()), "SHA-256");
    wrong(&|grant| grant.entrance = GrantEntrance::Key(KEY.to_uppercase()), "lower case");
    let limit = DeviceLimitChange { device: "d".into(), resource: "memory".into(), limit: Some(1) };
    wrong(&|grant| grant.device_limits = vec![limit.clone(); 65], "more than 64 limits");
    for (name, value) in
        [("tenant", "a"), ("1a", "a"), ("__a", "a"), ("a-b", "a"), ("", "a"), ("a", "\n"), ("a", &"x".repeat(129))]
    {
        wrong(&|grant| drop(grant.labels.insert(name.into(), value.into())), "is no label");
    }
    wrong(&|grant| grant.labels = (0..9).map(|i| (format!("a{i}"), String::new())).collect(), "more than 8 labels");
    let known = ["memory".to_owned()].into();
    let mut typo = grant("a");
    typo.limits.insert("memroy".into(), 1);
    let error = typo.check(Some(&known)).unwrap_err().to_string();
    assert!(error.contains("no API of this node has a resource `memroy`; there are memory"), "{error}");
    assert_eq!(check_key(&format!("sha256:{}", KEY.to_uppercase())).as_deref(), Ok(KEY));
    assert!(request(Grant { name: "a".into(), ..grant("a") }).checked(at(0)).is_ok());
    let forever = GrantRequest { lifetime: Some(u64::MAX), ..request(grant("a")) };
    assert!(forever.checked(at(1)).is_err());
}

#[test]
fn a_way_out_says_where_and_nothing_else() {
    let via = |node: &str, pin: &str| Some(Via { node: node.into(), pin: pin.into(), key: "forged".into() });
    let carried = Grant { via: via("gpu1:7800", KEY), sessions: Some(3), ..grant("a") };
    let kept = request(carried.clone()).checked(at(0)).unwrap();
    assert_eq!(kept.via.unwrap().key, "", "the node makes the key");
    let wrong = |grant: Grant, expected: &str| {
        let error = request(grant).checked(at(0)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    wrong(Grant { via: via("gpu1", KEY), ..carried.clone() }, "no address of a node");
    wrong(Grant { via: via("gpu1:7800", "00"), ..carried.clone() }, "its pin is not");
    wrong(Grant { entrance: GrantEntrance::Key(KEY.into()), ..carried.clone() }, "from a socket only");
    wrong(Grant { share: Some(3), ..carried.clone() }, "not this one");
    wrong(Grant { limits: [("device_memory".into(), 1)].into(), ..carried }, "not this one");
}

#[test]
fn the_key_of_a_way_out_goes_with_its_grant() {
    let place = Place::new();
    let mut store = place.store();
    store.write(&grant("a")).unwrap();
    for name in ["a", "b"] {
        fs::create_dir(place.folder().join(format!("{name}.via"))).unwrap();
        fs::write(place.folder().join(format!("{name}.via/tenant.key")), "").unwrap();
    }
    drop(store);
    assert_eq!(place.loaded(), (vec!["a".to_owned()], Vec::new()));
    assert_eq!(place.files(), ["a.json", "a.via", "lock"], "that of a grant which was not finished is gone");
    place.store().remove(&grant("a"), true).unwrap();
    assert_eq!(place.files(), ["lock"]);
}

#[test]
fn what_was_written_is_there_for_the_next_node() {
    let place = Place::new();
    assert_eq!(place.loaded(), (Vec::new(), Vec::new()));
    assert!(!place.folder().exists(), "a node without grants makes no folder");
    let mut whole = grant("whole");
    whole.limits.insert("device_memory".into(), 7);
    whole.device_limits.push(DeviceLimitChange { device: "A*".into(), resource: "device_memory".into(), limit: None });
    (whole.share, whole.cap, whole.expires) = (Some(25), Some(300), Some(9));
    whole.only_devices = Some(vec!["A 1".into()]);
    let mut store = place.store();
    store.write(&whole).unwrap();
    store.write(&Grant::new("far", GrantEntrance::Key(KEY.into()))).unwrap();
    assert_eq!(fs::metadata(place.folder()).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::read_to_string(place.folder().join(KEYS)).unwrap(), format!("{KEY}\n"));
    let error = place.store().open().unwrap_err().to_string();
    assert!(error.contains("another node has it"), "{error}");
    drop(store);
    let mut store = place.store();
    let (grants, notes) = store.load();
    assert_eq!((&grants[1], notes), (&whole, Vec::new()));
    store.remove(&grants[0], true).unwrap();
    store.remove(&grants[0], true).unwrap();
    assert_eq!(fs::read_to_string(place.folder().join(KEYS)).unwrap(), "");
    drop(store);
    assert_eq!(place.loaded().0, ["whole"]);
}

#[test]
fn a_file_that_was_not_finished_is_no_grant() {
    let place = Place::new();
    place.store().write(&grant("a")).unwrap();
    fs::rename(place.folder().join("a.json"), place.folder().join(".new-a.json")).unwrap();
    assert_eq!(place.loaded(), (Vec::new(), Vec::new()));
    assert_eq!(place.files(), ["lock"], "it is cleared away");
}

#[test]
fn forged_files_make_no_grants_and_are_told() {
    let place = Place::new();
    place.store().write(&grant("good")).unwrap();
    let (folder, good) = (place.folder(), fs::read_to_string(place.folder().join("good.json")).unwrap());
    let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    put("other.json", &good);
    put("broken.json", &good[..good.len() / 2]);
    put("key.json", &good.replace("\"priority\"", "\"priorty\""));
    put("version.json", &good.replace("\"version\": 1", "\"version\": 2"));
    put("dots.json", &good.replace("/run/grants/good", "/run/../etc"));
    put("good.txt", &good);
    put("huge.json", &" ".repeat(70_000));
    put("open.json", &good.replace("good", "open"));
    fs::set_permissions(folder.join("open.json"), Permissions::from_mode(0o666)).unwrap();
    symlink(folder.join("good.json"), folder.join("link.json")).unwrap();
    fs::create_dir(folder.join("folder.json")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.join("pipe.json"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        put("foreign.json", &good.replace("good", "foreign"));
        chown(folder.join("foreign.json"), Some(12_345), None).unwrap();
    }
    let before = place.files();
    let (names, notes) = place.loaded();
    assert_eq!(names, ["good"]);
    assert_eq!(notes.len(), before.len() - 2, "all but the lock and the good one: {notes:#?}");
    for expected in
        ["of grant `good`", "EOF", "priorty", "version is 2", "..", ".txt", "65536 bytes", "permissions 666"]
    {
        assert!(notes.iter().any(|note| note.contains(expected)), "{expected}: {notes:#?}");
    }
    assert_eq!(place.files(), before, "they are left where they are");
    if is_root {
        assert!(notes.iter().any(|note| note.contains("belongs to user 12345")), "{notes:#?}");
        chown(&folder, Some(12_345), None).unwrap();
        let (names, notes) = place.loaded();
        assert!(names.is_empty() && notes[0].contains("belongs to user 12345"), "{notes:?}");
        chown(&folder, Some(0), None).unwrap();
    }
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let (names, notes) = place.loaded();
    assert!(names.is_empty() && notes[0].contains("others can write to it"), "{notes:?}");
    assert!(place.store().write(&grant("b")).is_err());
    let link = place.directory.path().join("link");
    symlink(&folder, &link).unwrap();
    assert!(GrantStore::new(link, None).open().unwrap_err().to_string().contains("it is no folder"));
}

#[test]
fn a_grants_folder_has_one_socket_for_everybody() {
    let place = Place::new();
    let folder = place.directory.path().join("new/above/pod");
    let listener = entrance::open(&folder, true).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&folder), mode(&folder.join(SOCKET_NAME))), (0o711, 0o666));
    assert_eq!(mode(folder.parent().unwrap()), 0o700, "others do not come that far");
    UnixStream::connect(folder.join(SOCKET_NAME)).unwrap();
    let why = entrance::open(&folder, true).unwrap_err().to_string();
    assert!(why.contains("another node listens there"), "{why}");
    let inode = fs::metadata(&folder).unwrap().ino();
    drop(listener);
    // A node that was killed has left it; who has mounted the folder sees the new socket.
    let listener = entrance::open(&folder, false).unwrap();
    assert_eq!(fs::metadata(&folder).unwrap().ino(), inode);
    UnixStream::connect(folder.join(SOCKET_NAME)).unwrap();
    drop(listener);
    entrance::close(&folder, true).unwrap();
    assert!(!folder.exists());
    entrance::close(&folder, true).unwrap();
}

#[test]
fn what_a_container_puts_into_its_folder_is_not_followed() {
    let place = Place::new();
    let (folder, precious) = (place.directory.path().join("pod"), place.directory.path().join("precious"));
    fs::write(&precious, "").unwrap();
    fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
    drop(entrance::open(&folder, true).unwrap());
    fs::remove_file(folder.join(SOCKET_NAME)).unwrap();
    symlink(&precious, folder.join(SOCKET_NAME)).unwrap();
    let listener = entrance::open(&folder, false).unwrap();
    assert_eq!(fs::metadata(&precious).unwrap().mode() & 0o777, 0o600);
    assert!(fs::symlink_metadata(folder.join(SOCKET_NAME)).unwrap().mode() & 0o170_000 == 0o140_000);
    drop(listener);
    fs::write(folder.join("left"), "").unwrap();
    assert!(entrance::close(&folder, true).is_err() && folder.join("left").exists());
    let why = entrance::open(&folder, true).unwrap_err().to_string();
    assert!(why.contains("not empty: left"), "{why}");
    entrance::open(&folder, false).unwrap();
    let link = place.directory.path().join("link");
    symlink(&folder, &link).unwrap();
    assert!(entrance::open(&link, false).is_err());
    if rustix::process::geteuid().is_root() {
        chown(&folder, Some(12_345), None).unwrap();
        let why = entrance::open(&folder, false).unwrap_err().to_string();
        assert!(why.contains("belongs to user 12345"), "{why}");
    }
}

#[test]
fn a_grant_is_over_when_the_nodes_clock_says_so() {
    let request = GrantRequest { lifetime: Some(60), ..request(grant("a")) };
    let grant = request.checked(at(1_000)).unwrap();
    assert_eq!(grant.expires, Some(1_060));
    assert!(!grant.is_over(at(1_059)) && grant.is_over(at(1_060)) && grant.is_over(at(9_999)));
    let mut grants = Grants::default();
    let now = Instant::now();
    assert_eq!(grants.next_look(now, at(0)), None);
    grants.put(grant, None);
    grants.put(self::grant("b"), None);
    assert_eq!((grants.expired(at(1_059)), grants.expired(at(1_060))), (Vec::new(), vec!["a".to_owned()]));
    assert_eq!(grants.next_look(now, at(1_055)), Some(now + Duration::from_secs(5)));
    assert_eq!(grants.next_look(now, at(0)), Some(now + CLOCK_INTERVAL), "somebody may set the clock");
    assert!(grants.next_look(now, at(2_000)).is_some_and(|at| at <= now + Duration::from_secs(1)));
}

#[test]
fn a_guest_of_an_earlier_grant_is_not_one_of_the_next() {
    let mut grants = Grants::default();
    let place = grants.put(grant("a"), None);
    let entry = grants.at(place).unwrap();
    assert!(grants.admits(&entry) && grants.knows("a"));
    let changed = Grant { share: Some(3), ..grant("a") };
    assert_eq!(grants.put(changed, None), place, "a change keeps its guests");
    let report = RevokeReport { known: true, done: false, ..RevokeReport::of_none("a") };
    grants.begin_to_leave("a", report).unwrap();
    assert!(!grants.admits(&entry) && !grants.has("a") && grants.knows("a") && grants.are_leaving());
    assert_eq!(grants.tenants().map(|tenant| tenant.weight).collect::<Vec<_>>(), [3], "it has its limits to the end");
    grants.leaving.get_mut("a").unwrap().report.done = true;
    assert!(!grants.knows("a"));
    assert!(grants.ask("a").known && !grants.ask("a").known, "the last answer is given once");
    grants.put(grant("a"), None);
    assert!(!grants.admits(&entry));
}

#[test]
fn a_key_is_one_grants() {
    let mut grants = Grants::default();
    let shown = format!("key:{KEY}");
    assert_eq!(grants.of_key(&shown), None);
    let place = grants.put(Grant::new("far", GrantEntrance::Key(KEY.into())), None);
    assert_eq!(grants.of_key(&shown), Some(GrantEntry { name: "far".into(), place, key: Some(shown.clone()) }));
    assert_eq!(grants.of_key(KEY), None);
    grants.begin_to_leave("far", RevokeReport::of_none("far"));
    assert_eq!(grants.of_key(&shown), None);
}

#[test]
fn answers_that_nobody_asks_for_are_bounded() {
    let mut grants = Grants::default();
    for i in 0..MOST_UNASKED + 5 {
        let name = format!("a{i:06}");
        grants.put(grant(&name), None);
        grants.begin_to_leave(&name, RevokeReport { known: true, ..RevokeReport::of_none(&name) });
    }
    assert_eq!(grants.leaving.len(), MOST_UNASKED);
}

#[test]
fn a_listener_is_found_by_its_place() {
    let place = Place::new();
    let socket = UnixListener::bind(place.directory.path().join("s")).unwrap();
    let mut grants = Grants::default();
    let at = grants.put(grant("a"), Some(Foreign::own(socket.into())));
    assert!(grants.listener_at(at).is_some() && grants.listener_at(at + 1).is_none());
    assert_eq!(
        grants.listeners().map(|(name, place, _)| (name.to_owned(), place)).collect::<Vec<_>>(),
        [("a".into(), at)]
    );
}
