use super::*;
use crate::config::values::parse_mode;
use crate::config::vm::vm_at;
use aviary_node::PrivateDir;

fn read(text: &str) -> Result<FileConfig, ConfigError> {
    let directory = PrivateDir::create().unwrap();
    let path = directory.path().join("node.toml");
    fs::write(&path, text).unwrap();
    FileConfig::read(&path)
}

#[test]
fn modes() {
    assert_eq!(parse_mode("660"), Ok(0o660));
    assert!(parse_mode("999").is_err() && parse_mode("7777").is_err());
}

#[test]
fn a_whole_file() {
    let text = "spares = 3\nattach_rate = 7\nmovable = false\nparked_memory = \"4G\"\nnetwork_grace = \"90s\"\nidle_park = \"10m\"\nhome = \"2G\"\npass_environment = [\"MY_*\"]\n[limits]\nmemory = \"2K\"\n[tenants.alice]\nusers = [7]\nlimits = { memory = 5 }\nidle_park = \"0s\"\nhome = \"3M\"\n";
    let config = read(text).unwrap();
    assert_eq!((config.spares, config.attach_rate), (Some(3), Some(7)));
    assert_eq!((config.movable, read("").unwrap().movable), (Some(false), None));
    assert_eq!(config.network_grace(), Some(Duration::from_secs(90)));
    assert_eq!((config.parked_memory, config.idle_park()), (Some(Amount(4 << 30)), Some(Duration::from_secs(600))));
    assert_eq!(config.tenants()[0].idle_park, Some(Duration::ZERO));
    assert_eq!((config.home(), config.tenants()[0].home), (Some(2 << 30), Some(3 << 20)));
    assert_eq!(config.pass_environment, ["MY_*"]);
    assert_eq!(config.limits()["memory"], 2048);
    assert_eq!(config.tenants()[0].limits["memory"], 5);
}

#[test]
fn all_about_a_tenant() {
    let text = "[tenants.a]\nusers = [7]\ncertificates = [\"laptop\"]\nsessions = 2\nthreads = 3\napis = [\"x\"]\n\
                    functions = { deny = [\"f\"] }\nprivileged = [\"set*\"]\nweight = 4\npriority = -1\ncap = \"30%\"\n[tenants.b]\nfunctions = { allow = [] }\n";
    let tenants = read(text).unwrap().tenants();
    let (a, b) = (&tenants[0], &tenants[1]);
    assert_eq!((a.sessions, a.threads, a.weight, a.priority, a.cap), (Some(2), Some(3), 4, -1, Some(300)));
    assert_eq!((parse_cap("100%"), parse_cap("0.1%")), (Ok(1000), Ok(1)));
    ["30", "0%", "-1%", "100.1%", "nan%"].iter().for_each(|wrong| drop(parse_cap(wrong).unwrap_err()));
    assert_eq!((a.identities[0].as_str(), a.functions.deny[0].as_str()), ("laptop", "f"));
    assert_eq!(a.functions.privileged, ["set*"]);
    assert_eq!(
        b,
        &Tenant { functions: FunctionRule { allow: Some(vec![]), ..FunctionRule::default() }, ..Tenant::new("b") }
    );
}

#[test]
fn limits_of_devices_are_in_order() {
    let text = "[tenants.a.devices.\"*\"]\nlimits = { memory = \"1K\", files = 2 }\n\
                    [tenants.a.devices.\"card*\"]\nlimits = { memory = 3 }\n[tenants.a.devices.card]\nlimits = { memory = 4 }\n";
    let tenants = read(text).unwrap().tenants();
    let all: Vec<u64> = tenants[0].device_limits.iter().map(|limit| limit.limit).collect();
    assert_eq!(all, [4, 3, 2, 1024]);
    let many = (0..=DEVICE_LIMITS).map(|n| format!("[tenants.a.devices.c{n}]\nlimits = {{ memory = 1 }}\n"));
    let long = format!("[tenants.a.devices.{}]\nlimits = {{ memory = 1 }}\n", "x".repeat(65));
    for (wrong, why) in [(many.collect(), "more than 64"), (long, "64 bytes")] {
        let error = read(&wrong).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(read("[tenants.a.devices.x]\nmemory = 1\n").is_err());
    let text = "[devices.\"card*\"]\nlimits = { memory = 3 }\n[devices.\"*\"]\nscheduler = \"fair\"\nlimits = { memory = 4 }\n";
    let config = read(text).unwrap();
    assert_eq!(config.device_limits().iter().map(|limit| limit.limit).collect::<Vec<_>>(), [3, 4]);
    let rules = config.devices(None, &Rules::default(), &[]).unwrap();
    assert_eq!(rules.0.len(), 1, "limits alone schedule nothing");
}

#[test]
fn lists_of_devices_are_read() {
    let config =
        read("only_devices = [\"card*\"]\n[tenants.a]\nonly_devices = [\"chip\", \"*\"]\n[tenants.b]\n").unwrap();
    assert_eq!(config.only_devices(), Some(vec!["card*".into()]));
    let tenants = config.tenants();
    assert_eq!((&tenants[0].only_devices, &tenants[1].only_devices), (&Some(vec!["chip".into(), "*".into()]), &None));
    let long = format!("[tenants.a]\nonly_devices = [\"{}\"]\n", "x".repeat(65));
    for (wrong, why) in [
        ("only_devices = []\n", "`only_devices` of the node: the list is empty"),
        ("only_devices = [\"\"]\n", "`only_devices` of the node: expected a device's name"),
        ("[tenants.a]\nonly_devices = []\n", "of tenant `a`: the list is empty"),
        ("[tenants.a]\nonly_devices = [\"card\", \"\"]\n", "of tenant `a`: expected a device's name"),
        (&long, "64 bytes"),
        ("[tenants.a]\nonly_devices = \"card\"\n", "line 2"),
    ] {
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(parse_device("card*").is_ok() && parse_device("").is_err());
}

#[test]
fn vms_are_read() {
    let text = "[vms.a]\nsocket = \"/run/a.sock\"\n[vms.b]\nsocket = \"/run/b.sock\"\ntenant = \"t\"\nmode = \"660\"\n";
    let config = read(text).unwrap();
    let b = VmSettings { tenant: "t".into(), mode: 0o660, ..vm_at("b", Path::new("/run/b.sock")) };
    assert_eq!(config.vms(), [vm_at("a", Path::new("/run/a.sock")), b]);
    assert_eq!(config.vms()[0].tenant, "a");
    assert_eq!(parse_vm("a=/run/a.sock"), Ok(vm_at("a", Path::new("/run/a.sock"))));
    assert!(parse_vm("a=x.sock").is_ok_and(|vm| vm.socket.is_absolute()));
    assert!(parse_vm("uid-0=/run/a.sock").unwrap_err().contains("local user"));
    assert!(parse_vm("/run/a.sock").is_err() && parse_vm("a b=/x").is_err() && parse_vm("a=").is_err());
    assert_eq!(config.fixed(), read("").unwrap().fixed(), "a running node takes them over");
}

#[test]
fn names_of_local_users_are_nobody_elses() {
    for wrong in [
        "[tenants.uid-0]\n",
        "[tenants.uid-1001]\nusers = [1001]\n",
        "[tenants.uid-x]\n",
        "[tenants.a]\ncertificates = [\"b\", \"uid-0\"]\n",
        "[vms.uid-0]\nsocket = \"/a\"\n",
        "[vms.a]\nsocket = \"/a\"\ntenant = \"uid-0\"\n",
    ] {
        let error = read(wrong).unwrap_err();
        assert!(matches!(error, ConfigError::ReservedName { .. }), "{wrong}: {error}");
    }
    assert!(read("[tenants.my-uid-0]\ncertificates = [\"uid\"]\n").is_ok());
}

#[test]
fn names_that_do_not_exist_are_noticed() {
    let api = |functions: &[&str]| Api {
        name: "x".into(),
        version: String::new(),
        soname: String::new(),
        directory: PathBuf::new(),
        library: PathBuf::new(),
        launch: Vec::new(),
        functions: functions.iter().map(|name| (*name).to_owned()).collect(),
        resources: vec!["memory".into()],
        device_resources: Vec::new(),
        policy: None,
        sandbox: None,
    };
    let text = "[limits]\nmemry = 1\n[tenants.a]\napis = [\"x\", \"y\"]\nfunctions = { deny = [\"f\"] }\n";
    let config = read(text).unwrap();
    let tenants = |config: &FileConfig| {
        let (list, limits, device_limits) = (config.tenants(), config.limits(), config.device_limits());
        Tenants { list, limits, device_limits, ..Tenants::default() }
    };
    let check = |functions: &[&str]| check_names(&tenants(&config), &[api(functions)]);
    let notes = check(&["f", "g"]).unwrap();
    assert!(notes.len() == 2 && notes[0].contains("`y`") && notes[1].contains("`memry`"), "{notes:?}");
    assert!(check(&["g"]).unwrap_err().to_string().contains("`f`"));
    assert_eq!(check(&[]).unwrap().len(), 1, "an old build says nothing about its functions");
    let text = "[tenants.a.devices.x]\nlimits = { memory = 1 }\n[devices.x]\nlimits = { memory = 1 }\n";
    let notes = check_names(&tenants(&read(text).unwrap()), &[api(&["f"])]).unwrap();
    assert!(notes.len() == 2 && notes[1].contains("per device"), "{notes:?}");
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let error = read("spares = 3\nspare = 4\n").unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("spare"), "{error}");
    let error = read("[limits]\nmemory = \"2X\"\n").unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
    let error = read("[tenants.a]\nusers = [7]\n[tenants.b]\nusers = [7]\n").unwrap_err().to_string();
    assert!(error.contains("`a`") && error.contains("`b`"), "{error}");
    for wrong in
        ["[tenants.a]\n[tenants.b]\ncertificates = [\"a\"]\n", "[tenants.\"a b\"]\n", "[tenants.a]\nweight = 0\n"]
    {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    assert!(read("[tenants.a]\nfunctions = { deny = [], allow = [] }\n").is_err());
    for (wrong, why) in [
        ("[vms.a]\n", "socket"),
        ("[vms.a]\nsocket = \"a.sock\"\n", "absolute"),
        ("[vms.\"a b\"]\nsocket = \"/a\"\n", "`a b`"),
        ("[vms.a]\nsocket = \"/a\"\ntenant = \"\"\n", "``"),
        ("[vms.a]\nsocket = \"/a\"\nmode = \"9\"\n", "mode"),
        ("[vms.a]\nsocket = \"/a\"\n[vms.b]\nsocket = \"/a\"\n", "`b`"),
    ] {
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
