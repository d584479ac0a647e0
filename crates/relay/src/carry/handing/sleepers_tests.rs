use std::sync::{Arc, Mutex};

use super::sleepers::Sleepers;

#[test]
fn all_sleepers_wake_and_nobody_costs_nothing() {
    let shared = Arc::new((Mutex::new(0), Sleepers::default()));
    let wake = || shared.1.wake(&mut shared.0.lock().unwrap());
    (0..10).for_each(|_| wake());
    assert_eq!(shared.1.woken(), 0, "nobody waits");
    let threads = [(); 3].map(|()| {
        let shared = shared.clone();
        std::thread::spawn(move || {
            let mut state = shared.0.lock().unwrap();
            *state += 1;
            while *state < 100 {
                state = shared.1.wait(state);
            }
        })
    });
    while *shared.0.lock().unwrap() < 3 {
        std::thread::yield_now();
    }
    *shared.0.lock().unwrap() = 100;
    wake();
    wake();
    assert_eq!(shared.1.woken(), 1, "all at once");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
