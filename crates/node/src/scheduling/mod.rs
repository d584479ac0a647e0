//! Device schedulers: which session may give a device work now (FairGV 3.2, AvA 5.2.2, Optimus 5).
//!
//! A thread of the node hears the bells of all sessions, keeps one [`device::Device`] per device, and writes
//! grants into the sessions' pages. A call that finds its grant open pays one atomic load; everything else
//! happens between slices.

mod boost;
mod device;
mod ebpf;
pub mod rules;
mod settings;

pub use aviary_gate::WAIT_BOUNDS_NS;
pub use aviary_schedule::Share;
pub use device::{Usage, Waits};
pub use ebpf::LoadedPolicy;
pub use rules::Rules;
pub use settings::{DeviceKind, DeviceSettings, Scheduler};

use crate::error::NodeError;
use crate::log::Log;
use crate::tenants::shares::Shares;
use aviary_control::cpu;
use aviary_gate::ablation::{Term, without};
use aviary_gate::{DEVICE_SLOTS, DeviceSlot, GrantPage, monotonic};
use aviary_schedule::UNMANAGED;
use boost::{Booster, Process, ServerThreads};
use device::{Device, Place};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// What `aviary ps` and `aviary top` show of a device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceReport {
    pub device: String,
    pub tenants: Vec<Usage>,
}

/// A session that has kept a device from others for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    pub session: u64,
    pub device: String,
    /// For how long others wait.
    pub waiting: Duration,
}

/// What happens on some devices, as far as they are scheduled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceWork {
    /// Nanoseconds of device time up to now, by tenant.
    pub used: BTreeMap<String, u64>,
    /// Sessions that wait for one of them or have work there.
    pub working: BTreeSet<u64>,
}

/// The scheduling thread's handle. Dropping it ends the thread.
#[derive(Debug)]
pub struct Scheduling {
    shared: Arc<SchedulerShared>,
    /// `None`: nothing is scheduled, as the node's program is about to be replaced.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct SchedulerShared {
    epoll: OwnedFd,
    wake: OwnedFd,
    /// When to look again: the timeouts of epoll are in milliseconds, on older kernels.
    timer: OwnedFd,
    /// Tells the node that somebody is overdue.
    overdue: OwnedFd,
    over: AtomicBool,
    log: Log,
    shares: Shares,
    state: Mutex<SchedulerState>,
}

#[derive(Debug, Default)]
struct SchedulerState {
    /// Those of the shares, as of the last change; none while the node's program is about to be replaced.
    rules: Arc<Rules>,
    /// See [`Scheduling::start`].
    launch_slice: Option<Duration>,
    sessions: HashMap<u64, ScheduledSession>,
    /// `None`: not scheduled.
    devices: BTreeMap<String, Option<Device>>,
}

#[derive(Debug)]
struct ScheduledSession {
    tenant: String,
    page: Arc<GrantPage>,
    doorbell: OwnedFd,
    /// `None`: its API server has ended.
    server: Option<ServerThreads>,
    /// The names of the slots taken so far.
    slots: Vec<String>,
}

/// The epoll tokens of `wake` and `timer`; sessions count from 1.
const WAKE_TOKEN: u64 = 0;
const TIMER_TOKEN: u64 = u64::MAX;
/// Nice value of the scheduling thread where real-time priority is not available.
const FALLBACK_NICE: i32 = -15;
/// How often the scheduling thread tries to lock its state while threads are boosted.
const STATE_LOCK_POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Devices without a session that are remembered although only a pattern fits their names.
const IDLE_DEVICES: usize = 32;
/// Most events of one epoll wait.
const EVENTS_PER_WAIT: usize = 64;

impl Scheduling {
    /// `launch_slice`: how long a part of a kernel in parts shall take, whatever the rules say.
    pub fn start(shares: Shares, launch_slice: Option<Duration>, log: Log) -> Result<Scheduling, NodeError> {
        let failed = |errno: rustix::io::Errno| NodeError::Watch(errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE_TOKEN), epoll::EventFlags::IN).map_err(failed)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        let timer = timer.map_err(failed)?;
        // Edge-triggered: setting it anew is all that it needs.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER_TOKEN), flags).map_err(failed)?;
        let overdue = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let state = SchedulerState { rules: shares.rules(), launch_slice, ..SchedulerState::default() };
        let state = Mutex::new(state);
        let over = AtomicBool::new(false);
        let shared = Arc::new(SchedulerShared { epoll, wake, timer, overdue, over, log, shares, state });
        let scheduling = Scheduling { shared, thread: Mutex::new(None) };
        scheduling.begin()?;
        Ok(scheduling)
    }

    fn begin(&self) -> Result<(), NodeError> {
        self.shared.over.store(false, Ordering::SeqCst);
        let theirs = self.shared.clone();
        let thread = std::thread::Builder::new().name("scheduler".into()).spawn(move || theirs.run());
        *self.thread() = Some(thread.map_err(NodeError::Watch)?);
        Ok(())
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With its thread all priorities end that it has given to others.
    fn end_thread(&self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.wake_scheduler();
        let thread = self.thread().take();
        thread.map(JoinHandle::join);
    }

    /// Opens every device to all and ends the thread: another program is about to take the node's place, and a session
    /// waits for nobody during that.
    pub fn let_go(&self) {
        self.set_rules(Arc::default());
        self.end_thread();
    }

    /// No other program has come.
    pub fn resume(&self) -> Result<(), NodeError> {
        self.begin()?;
        self.set_rules(self.shared.shares.rules());
        Ok(())
    }

    /// A session that began under the program before: its API server may have slots already.
    pub fn enter_again(&self, session: u64, tenant: &str, process: u32, page: GrantPage, doorbell: OwnedFd) {
        self.enter(session, tenant, process, page, doorbell);
        self.shared.find_new_slots(&mut self.shared.state(), session);
        self.shared.wake_scheduler();
    }

    /// Nanoseconds that a part of long work shall take now; 0: work goes whole.
    pub fn slice(&self) -> u64 {
        self.shared.state().slice()
    }

    /// Writes into a page that an API server is about to get.
    pub fn prepare(&self, page: &GrantPage) {
        self.shared.state().prepare(page);
    }

    /// A session has begun in the API server `process`, which has `page` and `doorbell`, too.
    pub fn enter(&self, session: u64, tenant: &str, process: u32, page: GrantPage, doorbell: OwnedFd) {
        let shared = &self.shared;
        let page = Arc::new(page);
        let mut state = shared.state();
        // The rules may have changed since the page was made.
        state.prepare(&page);
        let data = epoll::EventData::new_u64(session);
        // Edge-triggered: what was rung is not read, so that a doorbell costs one system call on each side.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        if let Err(errno) = epoll::add(&shared.epoll, &doorbell, data, flags) {
            return shared.log.warn(format_args!(
                "session {session}: cannot watch its doorbell ({errno}): its waits for devices may be late"
            ));
        }
        let server = Process::new(process).ok();
        let server = server.map(|threads| ServerThreads { tenant: tenant.into(), threads: Arc::new(threads) });
        let member = ScheduledSession { tenant: tenant.to_owned(), page, doorbell, server, slots: Vec::new() };
        state.sessions.insert(session, member);
    }

    pub fn leave(&self, session: u64) {
        let mut state = self.shared.state();
        let Some(member) = state.sessions.remove(&session) else { return };
        let _ = epoll::delete(&self.shared.epoll, &member.doorbell);
        let now = monotonic();
        state.devices.values_mut().flatten().for_each(|device| device.leave(session, now));
        state.forget_devices();
        drop(state);
        self.shared.wake_scheduler();
    }

    /// The shares have changed: those of these tenants, and the rules of devices if they are not the same any more.
    pub fn change<'a>(&self, tenants: impl IntoIterator<Item = &'a String>) {
        let rules = self.shared.shares.rules();
        let others = !Arc::ptr_eq(&self.shared.state().rules, &rules);
        if others {
            self.set_rules(rules);
        }
        let (mut state, now) = (self.shared.state(), monotonic());
        for tenant in tenants {
            let share = self.shared.shares.of(tenant);
            state.devices.values_mut().flatten().for_each(|device| device.set_share(tenant, share, now));
        }
    }

    /// Other rules from now on; sessions continue. What devices were used stays known where they stay scheduled.
    fn set_rules(&self, rules: Arc<Rules>) {
        let now = monotonic();
        let mut state = self.shared.state();
        state.rules = rules;
        state.sessions.values().for_each(|member| state.prepare(&member.page));
        let SchedulerState { sessions, devices, rules: present, .. } = &mut *state;
        for (name, device) in devices {
            let settings = present.of(name).filter(|settings| settings.scheduler != Scheduler::None);
            match (&mut *device, settings) {
                (Some(device), Some(settings)) => device.configure(settings.clone(), now),
                (Some(scheduled), None) => {
                    scheduled.end_scheduling(now);
                    *device = None;
                }
                (None, Some(settings)) => {
                    let of = |member: &ScheduledSession| member.slots.iter().position(|slot| slot == name);
                    let slot = sessions.values().find_map(|member| Some(&member.page.slots()[of(member)?]));
                    *device = Device::new(settings.clone(), slot.map_or(DeviceKind::Exclusive, usual_kind));
                    let Some(device) = device else { continue };
                    for (session, member) in &*sessions {
                        let named = member.slots.iter().enumerate().filter(|(_, slot)| *slot == name);
                        for (at, _) in named {
                            member.join(device, *session, at, &self.shared.shares);
                        }
                    }
                }
                (None, None) => {}
            }
        }
        drop(state);
        self.shared.wake_scheduler();
    }

    /// Loads the programs of `ebpf` schedulers again. What is refused leaves the running one in place; answers why.
    pub fn reload_policies(&self) -> Vec<String> {
        let rules = self.shared.shares.rules();
        let policies = rules.0.iter().filter_map(|(_, settings)| settings.policy.as_ref());
        policies.filter_map(|policy| policy.load_again().err()).collect()
    }

    /// Readable when somebody is overdue.
    pub fn overdue_event(&self) -> BorrowedFd<'_> {
        self.shared.overdue.as_fd()
    }

    /// Who is overdue now; after the doorbell was heard.
    pub fn overdue(&self) -> Vec<Overdue> {
        let _ = rustix::io::read(&self.shared.overdue, &mut [0u8; 8]);
        let (mut state, now) = (self.shared.state(), monotonic());
        let of = |(name, device): (&String, &mut Option<Device>)| {
            let (session, waiting) = device.as_mut()?.take_overdue(now)?;
            Some(Overdue { session, device: name.clone(), waiting: Duration::from_nanos(waiting) })
        };
        state.devices.iter_mut().filter_map(of).collect()
    }

    /// Of devices with these names.
    pub fn work_on(&self, is_meant: impl Fn(&str) -> bool) -> DeviceWork {
        let (mut state, now) = (self.shared.state(), monotonic());
        let mut work = DeviceWork::default();
        let scheduled = state.devices.iter_mut().filter(|(name, _)| is_meant(name));
        for device in scheduled.filter_map(|(_, device)| device.as_mut()) {
            for usage in device.usage(now) {
                let used = work.used.entry(usage.tenant).or_default();
                *used = used.saturating_add(usage.used_ns);
            }
            work.working.extend(device.working());
        }
        work
    }

    pub fn report(&self) -> Vec<DeviceReport> {
        let (mut state, now) = (self.shared.state(), monotonic());
        let scheduled = state.devices.iter_mut().filter_map(|(name, device)| Some((name, device.as_mut()?)));
        scheduled.map(|(name, device)| DeviceReport { device: name.clone(), tenants: device.usage(now) }).collect()
    }
}

impl SchedulerState {
    /// Whether any device may be scheduled.
    fn has_rules(&self) -> bool {
        self.rules.0.iter().any(|(_, settings)| settings.scheduler != Scheduler::None)
    }

    /// API servers name devices as they like. What no session has any more is forgotten, but for those that a rule names,
    /// and some that fit a pattern: what was used of them counts when somebody comes back.
    fn forget_devices(&mut self) {
        let SchedulerState { rules, sessions, devices, .. } = self;
        let named = |name: &String| rules.0.iter().any(|(pattern, _)| pattern == name);
        let idle = |name: &String| !sessions.values().any(|member| member.slots.contains(name));
        let mut kept = 0;
        devices.retain(|name, device| {
            if named(name) || !idle(name) {
                return true;
            }
            kept += usize::from(device.is_some());
            device.is_some() && kept <= IDLE_DEVICES
        });
    }

    /// The doorbell of that session rang.
    fn woke(&mut self, session: u64) {
        let SchedulerState { sessions, devices, .. } = self;
        let Some(member) = sessions.get(&session) else { return };
        for name in &member.slots {
            if let Some(Some(device)) = devices.get_mut(name) {
                device.woke(session);
            }
        }
    }

    fn slice(&self) -> u64 {
        let slice = self.launch_slice.or(self.rules.shortest_slice()).unwrap_or_default();
        u64::try_from(slice.as_nanos()).unwrap_or(0)
    }

    fn prepare(&self, page: &GrantPage) {
        if self.has_rules() {
            page.schedule();
        }
    }
}

/// The kind that the API server says. One that lies about a device's name first can make the node admit sessions
/// beside each other where the device does one's work after the other's: they wait for each other there.
fn usual_kind(slot: &DeviceSlot) -> DeviceKind {
    if slot.preempts() { DeviceKind::Preemptive } else { DeviceKind::Exclusive }
}

impl ScheduledSession {
    fn join(&self, device: &mut Device, session: u64, slot: usize, shares: &Shares) {
        let (tenant, page, server) = (self.tenant.clone(), self.page.clone(), self.server.clone());
        device.join(monotonic(), shares.of(&self.tenant), Place { session, tenant, page, slot, server });
    }
}

impl Drop for Scheduling {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl SchedulerShared {
    fn wake_scheduler(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `at` nanoseconds of [`monotonic`]; `None`: not at all.
    fn set_timer(&self, at: Option<u64>) -> rustix::io::Result<()> {
        // At 0 the kernel takes it as not to be set.
        let at = at.map_or(0, |at| at.max(1));
        let value = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once).map(drop)
    }

    fn run(&self) {
        // Devices are idle while this thread waits for a processor. Both are refused where the node is not root, the first
        // one also in a control group that may have no real-time threads.
        let priority = cpu::set_scheduler_priority();
        if let Err(error) = &priority {
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), FALLBACK_NICE);
            cpu::request_short_quantum();
            boost::log_no_real_time(self.log, error);
        }
        let mut booster = Booster::new(priority.is_ok() && !without(Term::Boost), self.log);
        self.serve(&mut booster);
        booster.end(monotonic());
    }

    /// Until the scheduling is over.
    fn serve(&self, booster: &mut Booster) {
        // For when the timer is set: what is looked for lies ahead, so that a time that has passed does not come again.
        let (mut look, mut set): (Option<u64>, Option<u64>) = (None, None);
        while !self.over.load(Ordering::SeqCst) {
            if look != set {
                if let Err(errno) = self.set_timer(look) {
                    return self.log.error(format_args!("device scheduling has ended (the kernel does not set its timer: {errno}): sessions without an allowance wait; restart the node"));
                }
                set = look;
            }
            let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_PER_WAIT];
            let events = match epoll::wait(&self.epoll, &mut buffer, None) {
                Ok((events, _)) => events,
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return self.log.error(format_args!("device scheduling has ended (it cannot wait for events: {errno}): sessions without an allowance wait; restart the node")),
            };
            let mut state = self.lock_state_bounding_boosts(booster);
            for event in events {
                match event.data.u64() {
                    WAKE_TOKEN => {
                        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                    }
                    TIMER_TOKEN => {}
                    session => {
                        self.find_new_slots(&mut state, session);
                        state.woke(session);
                    }
                }
            }
            let now = monotonic();
            look = state.devices.values_mut().flatten().filter_map(|device| device.step(now, booster)).min();
            let again = booster.review(now);
            look = look.into_iter().chain(again).min();
            if state.devices.values().flatten().any(|device| device.overdue(now).is_some()) {
                let _ = rustix::io::write(&self.overdue, &1u64.to_ne_bytes());
            }
        }
    }

    /// Locks the state. Its holder may wait for the processor that a boosted thread uses, so the bounds of boosts are
    /// enforced meanwhile.
    fn lock_state_bounding_boosts(&self, booster: &mut Booster) -> MutexGuard<'_, SchedulerState> {
        loop {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if booster.is_idle() => return self.state(),
                Err(TryLockError::WouldBlock) => {
                    booster.review(monotonic());
                    std::thread::sleep(STATE_LOCK_POLL_INTERVAL);
                }
            }
        }
    }

    /// Finds the slots that a session took since the last look.
    fn find_new_slots(&self, state: &mut SchedulerState, session: u64) {
        let SchedulerState { rules, sessions, devices, .. } = state;
        let Some(member) = sessions.get_mut(&session) else { return };
        while member.slots.len() < DEVICE_SLOTS {
            let at = member.slots.len();
            let slot = &member.page.slots()[at];
            let Some(name) = slot.name() else { return };
            let kind = usual_kind(slot);
            let device = devices.entry(name.clone()).or_insert_with(|| {
                let settings = rules.of(&name).cloned();
                settings.and_then(|settings| Device::new(settings, kind))
            });
            match device {
                Some(device) => member.join(device, session, at, &self.shares),
                None => {
                    slot.allowance.store(UNMANAGED, Ordering::SeqCst);
                    slot.open();
                }
            }
            member.slots.push(name);
        }
    }
}

#[cfg(test)]
mod forgetting {
    use super::*;
    use crate::log::Level;
    use crate::tenants::tenant::{TenantChange, Tenants};
    use std::sync::atomic::Ordering::SeqCst;

    fn rules() -> Rules {
        let settings = DeviceSettings::default();
        Rules(vec![("card".into(), settings.clone()), ("gpu*".into(), settings)])
    }

    /// A session that takes all its slots for devices of these names, and rings.
    fn session(scheduling: &Scheduling, number: u64, name: impl Fn(usize) -> String) {
        let fd = GrantPage::create().unwrap();
        let page = GrantPage::open(fd.as_fd()).unwrap();
        page.slots().iter().enumerate().for_each(|(at, slot)| slot.take(&name(at)));
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        scheduling.enter(number, "tenant", std::process::id(), page, doorbell);
        // As the scheduling thread does when the doorbell rings.
        scheduling.shared.find_new_slots(&mut scheduling.shared.state(), number);
    }

    #[test]
    fn names_that_api_servers_invent_go_with_their_sessions() {
        let scheduling =
            Scheduling::start(Shares::new(Tenants::default(), rules()), None, Log::new(Level::Error)).unwrap();
        let known = || scheduling.shared.state().devices.len();
        session(&scheduling, 1, |at| if at == 0 { "card".into() } else { format!("gpu {at}") });
        for number in 2..200 {
            session(&scheduling, number, |at| format!("{}{number}-{at}", if at % 2 == 0 { "gpu" } else { "none" }));
            scheduling.leave(number);
            assert!(known() <= DEVICE_SLOTS + IDLE_DEVICES, "{}", known());
        }
        scheduling.leave(1);
        assert!(known() <= 1 + IDLE_DEVICES);
        assert!(scheduling.shared.state().devices.contains_key("card"));
        assert!(!scheduling.shared.over.load(SeqCst));
    }

    #[test]
    fn changed_shares_and_rules_reach_the_devices_that_a_tenant_has() {
        let shares = Shares::new(Tenants::default(), rules());
        let scheduling = Scheduling::start(shares.clone(), None, Log::new(Level::Error)).unwrap();
        session(&scheduling, 1, |at| if at == 0 { "card".into() } else { format!("none {at}") });
        let weights = || -> Vec<u32> {
            scheduling.report().iter().flat_map(|device| device.tenants.iter().map(|usage| usage.weight)).collect()
        };
        assert_eq!(weights(), [1]);
        let mut tenants = Tenants::default();
        tenants.change(&TenantChange { name: "tenant".into(), weight: Some(5), ..TenantChange::default() });
        shares.replace(tenants.clone(), None);
        scheduling.change(&["tenant".to_owned()]);
        assert_eq!(weights(), [5]);
        // Not scheduled, and scheduled again: the share is asked for.
        shares.replace(tenants.clone(), Some(Rules::default()));
        scheduling.change(&[]);
        assert!(weights().is_empty());
        shares.replace(tenants, Some(rules()));
        scheduling.change(&[]);
        assert_eq!(weights(), [5]);
        // Before another program takes the node's place, and if it does not.
        scheduling.let_go();
        assert!(weights().is_empty());
        scheduling.resume().unwrap();
        assert_eq!(weights(), [5]);
    }
}
