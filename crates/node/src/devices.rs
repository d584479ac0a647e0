//! The devices that there are to give: for a program that asks at the admin socket and cannot load vendors' libraries itself.
//!
//! Listing them takes as long as a vendor's library needs to start. So an answer is what was listed last; an old one is
//! listed again beside it, on a thread of its own. Who has memory there is listed for the node alone (swapping/holders.rs).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What was listed longer ago is listed again when it is asked for.
const FRESH: Duration = Duration::from_secs(5);

type List = dyn Fn() -> Result<Value, String> + Send + Sync;

/// Lists the machine's devices.
#[derive(Clone)]
pub struct DeviceLister(Arc<Shared>);

struct Shared {
    list: Box<List>,
    state: Mutex<Listing>,
}

#[derive(Default)]
struct Listing {
    last: Option<(Instant, Result<Value, String>)>,
    /// Bytes by name, as listed last: also of devices that are not listed at the moment.
    memories: BTreeMap<String, u64>,
    is_running: bool,
}

/// The answer to `"devices"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedDevices {
    /// As `aviary devices --json` prints them; `None`: nothing is known yet, ask again.
    pub devices: Option<Value>,
    /// How long ago they were listed.
    pub age_ms: u64,
    /// Why they could not be.
    pub reason: Option<String>,
}

impl DeviceLister {
    pub fn new(list: impl Fn() -> Result<Value, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared { list: Box::new(list), state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, Listing> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known at `now`.
    pub(crate) fn answer(&self, now: Instant) -> ListedDevices {
        let mut state = self.state();
        let age = state.last.as_ref().map(|(then, _)| now.saturating_duration_since(*then));
        if age.is_none_or(|age| age > FRESH) && !state.is_running {
            state.is_running = true;
            let lister = self.clone();
            std::thread::spawn(move || lister.run());
        }
        let age_ms = age.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        match &state.last {
            None => ListedDevices { devices: None, age_ms, reason: None },
            Some((_, Ok(devices))) => ListedDevices { devices: Some(devices.clone()), age_ms, reason: None },
            Some((_, Err(reason))) => ListedDevices { devices: None, age_ms, reason: Some(reason.clone()) },
        }
    }

    /// Bytes of the devices whose memory is known at `now`, by their names: of equal ones of an API together. None before they
    /// were listed for the first time, which this does not wait for.
    pub(crate) fn memories(&self, now: Instant) -> BTreeMap<String, u64> {
        self.answer(now);
        self.state().memories.clone()
    }

    fn run(&self) {
        let listed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.0.list)()));
        let listed = listed.unwrap_or_else(|_| Err("listing the devices has panicked".to_owned()));
        let mut state = self.state();
        if let Ok(devices) = &listed {
            state.memories.extend(memories(devices));
        }
        state.last = Some((Instant::now(), listed));
        state.is_running = false;
    }
}

fn memories(devices: &Value) -> BTreeMap<String, u64> {
    let mut by_api: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for device in devices.as_array().into_iter().flatten() {
        let text = |field: &str| device.get(field).and_then(Value::as_str);
        let bytes = device.get("memory").and_then(Value::as_u64).filter(|bytes| *bytes > 0);
        if let (Some(api), Some(name), Some(bytes)) = (text("api"), text("name"), bytes) {
            let sum = by_api.entry((api, name)).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    let mut memories = BTreeMap::new();
    for ((_, name), bytes) in by_api {
        let most: &mut u64 = memories.entry(name.to_owned()).or_default();
        *most = bytes.max(*most);
    }
    memories
}

impl std::fmt::Debug for DeviceLister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeviceLister")
    }
}

/// What a process has of a device's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// As accounts name it.
    pub device: String,
    /// As the node sees it; 0: none, and the library tells of this device.
    pub process: u32,
    pub bytes: u64,
}

/// Lists who has memory of which device. It may take seconds.
#[derive(Clone)]
pub struct HolderLister(Arc<dyn Fn() -> Vec<Holder> + Send + Sync>);

impl HolderLister {
    pub fn new(list: impl Fn() -> Vec<Holder> + Send + Sync + 'static) -> Self {
        Self(Arc::new(list))
    }

    pub(crate) fn list(&self) -> Vec<Holder> {
        (self.0)()
    }
}

impl std::fmt::Debug for HolderLister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HolderLister")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::mpsc::channel;

    #[test]
    fn memory_of_devices_is_known_by_name() {
        let device = |api: &str, name: &str, memory: Value| json!({"api": api, "name": name, "memory": memory});
        let listed = json!([
            device("cuda", "H100", json!(80)),
            device("cuda", "H100", json!(80)),
            device("nvml", "H100", json!(81)),
            device("testapi", "unknown", Value::Null),
            device("opencl", "none", json!(0)),
            "no device",
        ]);
        assert_eq!(memories(&listed), BTreeMap::from([("H100".to_owned(), 160)]));
        assert_eq!(memories(&json!({})), BTreeMap::new());
    }

    #[test]
    fn a_list_is_made_beside_the_answer_and_made_again_when_it_is_old() {
        let (go, wait) = channel::<u32>();
        let wait = Mutex::new(wait);
        let lister = DeviceLister::new(move || match wait.lock().expect("no other panicked").recv() {
            Ok(number) => Ok(json!([number])),
            Err(_) => Err("gone".into()),
        });
        let start = Instant::now();
        let none = ListedDevices { devices: None, age_ms: 0, reason: None };
        assert_eq!(lister.answer(start), none);
        assert_eq!(lister.answer(start), none, "the list is not waited for");
        go.send(1).expect("it waits");
        let known = |at: Instant| loop {
            let answer = lister.answer(at);
            if answer != none {
                return answer;
            }
            std::thread::yield_now();
        };
        assert_eq!(known(start).devices, Some(json!([1])));
        drop(go);
        let later = Instant::now() + 2 * FRESH;
        assert_eq!(known(later).devices, Some(json!([1])), "the old one until there is another");
        while lister.answer(start).reason.is_none() {
            std::thread::yield_now();
        }
        assert_eq!(lister.answer(start).reason.as_deref(), Some("gone"));
    }
}
