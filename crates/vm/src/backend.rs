//! The device as a vhost-user backend: the meaning of its events, and the sockets of sessions in
//! its event loop.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{ShutdownHandle, VhostUserBackend, VringEpollHandler, VringRwLock};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

use crate::device::{CONTROL, DOORBELL, Device, EVENTS, QUEUE_SIZE, QUEUES};
use crate::memory;
use crate::sessions::{Interest, Watch};

const VERSION_1: u64 = 1 << 32;
const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;

// Tokens of events; the library uses those of the queues and the next one.
const RETRY_TOKEN: u16 = QUEUES as u16 + 1;
const FIRST_SOCKET: u16 = RETRY_TOKEN + 1;

type EventLoop = VringEpollHandler<Arc<Backend>>;

pub struct Backend {
    device: Mutex<Device>,
    sockets: Arc<Sockets>,
    /// Readable when a queue has more chains than were taken in its turn.
    again: OwnedFd,
    connection: OnceLock<ShutdownHandle>,
    /// The control queue, once the worker has seen it.
    control: OnceLock<VringRwLock>,
}

/// The sockets of sessions in the event loop.
#[derive(Default)]
pub struct Sockets(OnceLock<Weak<EventLoop>>);

impl Sockets {
    fn with_loop(&self, act: impl FnOnce(&EventLoop) -> io::Result<()>) -> io::Result<()> {
        self.0.get().and_then(Weak::upgrade).map_or(Ok(()), |events| act(&events))
    }
}

fn event_set(interest: Interest) -> EventSet {
    let mut set = EventSet::empty();
    set.set(EventSet::IN, interest.read);
    set.set(EventSet::OUT, interest.write);
    set
}

impl Watch for Arc<Sockets> {
    /// Changes the events that are awaited at a socket. A socket without awaited events leaves the
    /// loop, which would otherwise report its hang-up again and again.
    fn change(&self, socket: BorrowedFd<'_>, place: usize, before: Interest, after: Interest) -> io::Result<()> {
        let (number, none) = (u64::from(FIRST_SOCKET) + place as u64, Interest::default());
        self.with_loop(|events| {
            if before != none {
                events.unregister_listener(socket.as_raw_fd(), event_set(before), number)?;
            }
            if after != none {
                events.register_listener(socket.as_raw_fd(), event_set(after), number)?;
            }
            Ok(())
        })
    }
}

/// The library's worker thread ends at any error, without a report. Its end shuts the process down,
/// because the VM would no longer be served.
struct Worker(ShutdownHandle);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

thread_local! {
    static WORKER: OnceLock<Worker> = const { OnceLock::new() };
}

impl Backend {
    pub fn new(device: Device, sockets: Arc<Sockets>) -> io::Result<Self> {
        let again = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Backend {
            device: Mutex::new(device),
            sockets,
            again,
            connection: OnceLock::new(),
            control: OnceLock::new(),
        })
    }

    /// Enters the loop. Called once, before the VM can do anything.
    pub fn start(&self, events: &Arc<EventLoop>) -> io::Result<()> {
        let _ = self.sockets.0.set(Arc::downgrade(events));
        events.register_listener(self.again.as_raw_fd(), EventSet::IN, u64::from(RETRY_TOKEN))
    }

    pub fn connected(&self, connection: ShutdownHandle) {
        let _ = self.connection.set(connection);
    }

    /// Locks the device. A panic in another thread is reported by the worker's end.
    pub fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard_worker(&self) {
        if let Some(connection) = self.connection.get() {
            WORKER.with(|worker| {
                worker.get_or_init(|| Worker(connection.clone()));
            });
        }
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        VERSION_1 | INDIRECT_DESCRIPTORS | EVENT_INDEX | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    /// Without a log of dirty pages: a VM with this device is not migrated.
    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
    }

    fn reset_device(&self) {
        self.device().driver_reset();
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn update_memory(&self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        memory::check(&memory.memory()).map_err(|error| {
            self.device().sessions.log().line(format_args!("the VM cannot use the device: {error}"));
            io::Error::other(error)
        })
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        if queue == CONTROL as u32 {
            self.device().control_stopped(self.control.get());
        }
        Ok(())
    }

    fn handle_event(&self, event: u16, _set: EventSet, queues: &[VringRwLock], _thread: usize) -> io::Result<()> {
        self.guard_worker();
        if let Some(control) = queues.get(CONTROL) {
            let _ = self.control.set(control.clone());
        }
        let mut device = self.device();
        device.look_at_control(queues);
        let queue = |number: usize| queues.get(number).ok_or(io::ErrorKind::InvalidInput);
        let more = match event {
            _ if event == CONTROL as u16 => device.take_requests(queue(CONTROL)?),
            _ if event == DOORBELL as u16 => device.take_doorbells(queue(DOORBELL)?),
            _ if event == EVENTS as u16 => false,
            RETRY_TOKEN => {
                let _ = rustix::io::read(&self.again, &mut [0; 8]);
                let requests = device.take_requests(queue(CONTROL)?);
                device.take_doorbells(queue(DOORBELL)?) || requests
            }
            FIRST_SOCKET.. => {
                device.sessions.ready(usize::from(event - FIRST_SOCKET));
                false
            }
            _ => false,
        };
        device.settle(queues);
        if more {
            let _ = rustix::io::write(&self.again, &1u64.to_ne_bytes());
        }
        Ok(())
    }
}
