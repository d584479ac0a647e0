//! Ended sessions leave nothing behind. It counts descriptors: no other test may run in its process.

use crate::support::Machine;
use crate::support::driver::{header, kind, map_request};
use crate::support::node::{hello, welcome};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_sessions_leave_nothing() {
    let mut machine = Machine::new();
    let mut before = 0;
    for number in 1..=1000 {
        machine.driver.open(number, number.into(), "cycle").unwrap();
        let mut server = machine.node.accept();
        machine.driver.send(number, &hello()).unwrap();
        server.greeting();
        let map = machine.driver.submit(&map_request(number, 0, 1, &[(0x8000, 0x4000), (0x10_8000, 0x1000)]));
        server.mapping();
        server.mapping();
        match number % 4 {
            // The guest closes, the API server ends, both at once with the request in flight; or
            // all of it is orderly.
            0 => {
                let close = machine.driver.submit(&header(kind::CLOSE, number, 0, 0, [0; 3]));
                assert!(server.is_told_the_end());
                drop(server);
                assert_eq!((machine.driver.answer(map), machine.driver.answer(close)), (Err(32), Ok(0)));
            }
            1 => {
                drop(server);
                assert_eq!(machine.driver.answer(map), Err(32));
                assert_eq!(machine.driver.simple(kind::CLOSE, number, [0; 3]), Ok(0));
            }
            2 => {
                let close = machine.driver.submit(&header(kind::CLOSE, number, 0, 0, [0; 3]));
                drop(server);
                assert_eq!((machine.driver.answer(map), machine.driver.answer(close)), (Err(32), Ok(0)));
            }
            _ => {
                server.send(&welcome());
                server.done(0, 0);
                server.done(0x4000, 0);
                assert_eq!(machine.driver.answer(map), Ok(0));
                drop(server);
                assert_eq!(machine.driver.simple(kind::CLOSE, number, [0; 3]), Ok(0));
            }
        }
        if number == 10 {
            before = descriptors();
        }
    }
    assert_eq!(descriptors(), before);
    machine.power_off().unwrap();
}
