//! Callbacks that are called at most once, and whose API server is gone.

use std::sync::{Arc, Barrier};

use aviary_guest::{Api, Lost};

use super::*;

/// One registered callback that has been called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    number: u64,
    x: i32,
    thread: std::thread::ThreadId,
}

/// The calls of the functions that a test has registered, in their order.
struct Application {
    api: &'static Api,
    calls: Mutex<Vec<Seen>>,
    called: Condvar,
}

/// The user data of one callback.
struct Registered {
    application: &'static Application,
    number: u64,
}

unsafe fn note(userdata: usize, x: i32, _: *const i8, _: *mut u8) -> i32 {
    // SAFETY: `register` has leaked it.
    let registered = unsafe { &*(userdata as *const Registered) };
    let Application { api, calls, called } = registered.application;
    if x == GONE {
        let answered = api.call(ADD).is_ok_and(|call| call.send().is_ok());
        assert!(!answered, "a call without an API server");
    }
    calls.lock().unwrap().push(Seen { number: registered.number, x, thread: std::thread::current().id() });
    called.notify_all();
    0
}

impl Application {
    fn new() -> &'static Application {
        Box::leak(Box::new(Application { api: api(), calls: Mutex::default(), called: Condvar::new() }))
    }

    fn prepare(&'static self, function: u32, kind: u32, number: u64) -> Result<(aviary_guest::Call, u64), Lost> {
        let registered = Box::leak(Box::new(Registered { application: self, number }));
        let mut call = self.api.call(function)?;
        let id = call.callback(note as *const () as usize, kind, std::ptr::from_ref(registered) as usize, true);
        Ok((call, id))
    }

    /// Registers a callback by a call that waits; its id.
    fn register(&'static self, number: u64) -> Result<u64, Lost> {
        let (call, id) = self.prepare(IDENTITY, 0, number)?;
        call.send().map(|_| id)
    }

    /// Registers a callback by a call that does not wait.
    fn post(&'static self, number: u64) -> Result<(), Lost> {
        self.prepare(POST, 0, number)?.0.send_async().map(drop)
    }

    fn kill(&self) {
        assert!(self.api.call(DIE).unwrap().send().is_err());
    }

    /// Waits until so many callbacks have run.
    fn calls(&self, count: usize) -> Vec<Seen> {
        let calls = self.calls.lock().unwrap();
        self.called.wait_while(calls, |calls| calls.len() < count).unwrap().clone()
    }

    fn numbers(&self, count: usize) -> Vec<(u64, i32)> {
        self.calls(count).iter().map(|seen| (seen.number, seen.x)).collect()
    }
}

#[test]
fn pending_callbacks_are_called_once_in_their_order_by_the_callback_thread() {
    let application = Application::new();
    for number in 0..200 {
        match number % 2 {
            0 => drop(application.register(number).unwrap()),
            _ => application.post(number).unwrap(),
        }
    }
    application.kill();
    assert_eq!(application.numbers(200), (0..200).map(|number| (number, GONE)).collect::<Vec<_>>());
    let calls = application.calls(200);
    assert!(calls.iter().all(|seen| seen.thread == calls[0].thread && seen.thread != std::thread::current().id()));
}

#[test]
fn callbacks_that_promise_nothing_are_not_called_without_an_api_server() {
    let application = Application::new();
    application.prepare(IDENTITY, 1, 1).unwrap().0.send().unwrap();
    application.register(2).unwrap();
    application.kill();
    // The one that was registered first would have been called first.
    assert_eq!(application.numbers(1), [(2, GONE)]);
}

#[test]
fn callback_that_has_arrived_is_not_called_again() {
    for here in [true, false] {
        let application = Application::new();
        let ids: Vec<u64> = (0..3).map(|number| application.register(number).unwrap()).collect();
        let mut call = application.api.call(LAST_WORDS).unwrap();
        call.word(ids[1]);
        call.word(u64::from(here));
        assert!(call.send().is_err());
        let calls = application.numbers(3);
        assert_eq!(calls.len(), 3);
        let others: Vec<_> = calls.iter().filter(|(number, _)| *number != 1).copied().collect();
        assert_eq!(others, [(0, GONE), (2, GONE)]);
        // The loss may have been seen before the message.
        let arrived = calls.iter().find(|(number, _)| *number == 1).unwrap();
        assert!([7, GONE].contains(&arrived.1), "{arrived:?}");
    }
}

#[test]
fn registration_without_an_api_server_fails_or_the_callback_is_called() {
    let application = Application::new();
    application.register(0).unwrap();
    application.kill();
    let mut expected = vec![(0, GONE)];
    assert_eq!(application.numbers(1), expected);
    assert_eq!(application.register(1), Err(Lost));
    for number in 2..10 {
        if application.post(number).is_ok() {
            expected.push((number, GONE));
        }
    }
    assert_eq!(application.numbers(expected.len()), expected);
    // The first registration of all, in a call that had begun.
    let first = Application::new();
    let mut call = first.api.call(IDENTITY).unwrap();
    std::thread::spawn(|| first.kill()).join().unwrap();
    assert_eq!(call.callback(note as *const () as usize, 0, 0, true), 0);
    assert_eq!(call.send().map(drop), Err(Lost));
}

#[test]
fn callbacks_of_threads_are_called_once_each_if_their_registration_has_succeeded() {
    const THREADS: u64 = 4;
    let application = Application::new();
    let start = Arc::new(Barrier::new(THREADS as usize + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let start = start.clone();
            std::thread::spawn(move || {
                let mut registered = Vec::new();
                for n in 0..10_000 {
                    if n == 5 {
                        start.wait();
                    }
                    let number = thread << 32 | n;
                    let done = match n % 2 {
                        0 => application.register(number).map(drop),
                        _ => application.post(number),
                    };
                    match done {
                        Ok(()) => registered.push(number),
                        Err(Lost) => return registered,
                    }
                }
                registered
            })
        })
        .collect();
    start.wait();
    application.kill();
    let mut expected: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let mut called: Vec<u64> = application.calls(expected.len()).iter().map(|seen| seen.number).collect();
    expected.sort_unstable();
    called.sort_unstable();
    assert_eq!(called, expected);
}
