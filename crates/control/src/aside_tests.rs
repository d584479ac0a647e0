use super::*;
use std::{
    io::{PipeReader, pipe},
    sync::mpsc::{Receiver, Sender, channel},
};

fn party(name: &str) -> PartyName {
    name.into()
}

/// A job that says that it runs and then waits until its sender is dropped.
fn waiting_job(aside: &Aside, name: &str, runs: &Sender<u64>, number: u64) -> Sender<()> {
    let ((until, waits), runs) = (channel::<()>(), runs.clone());
    aside.run(&party(name), "a test's", move || {
        runs.send(number).unwrap();
        let _ = waits.recv();
    });
    until
}

fn begun(runs: &Receiver<u64>, count: usize) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).map(|_| runs.recv().unwrap()).collect();
    all.sort_unstable();
    all
}

#[test]
fn party_that_waits_for_ever_holds_up_nobody_else() {
    let (aside, (runs, has_run)) = (Aside::default(), channel());
    let waits: Vec<_> = (0..100).map(|number| waiting_job(&aside, "alice", &runs, number)).collect();
    assert_eq!(begun(&has_run, MOST_OF_ONE), (0..MOST_OF_ONE as u64).collect::<Vec<_>>());
    for number in 1000..1100 {
        let (done, is_done) = channel();
        aside.run(&party("bob"), "a test's", move || done.send(number).unwrap());
        assert_eq!(is_done.recv(), Ok(number));
    }
    assert!(has_run.try_recv().is_err(), "more of alice's at a time than she may have");
    drop(waits);
    assert_eq!(begun(&has_run, 100 - MOST_OF_ONE).len(), 100 - MOST_OF_ONE);
}

#[test]
fn late_jobs_are_told_once_and_counted_until_they_are_done() {
    let (aside, (runs, has_run)) = (Aside::default(), channel());
    let start = Instant::now();
    assert_eq!(aside.next_look(start), None);
    let waits: Vec<_> = (0..3).map(|number| waiting_job(&aside, "alice", &runs, number)).collect();
    begun(&has_run, 3);
    // They began before this moment.
    let now = Instant::now();
    assert!(aside.next_look(now).is_some_and(|at| (start + LATE..=now + LATE).contains(&at)));
    assert_eq!((aside.look(start), aside.late_of("alice", start)), (vec![], 0));
    let late = now + LATE;
    let told = LateJob { party: party("alice"), what: "a test's" };
    assert_eq!(aside.look(late), vec![told; 3]);
    assert_eq!((aside.look(late), aside.next_look(late)), (vec![], None));
    assert_eq!((aside.late_of("alice", late), aside.late_of("bob", late)), (3, 0));
    assert_eq!(aside.busy(), Some(party("alice")));
    drop(waits);
    while aside.busy().is_some() {
        std::thread::yield_now();
    }
    assert_eq!(aside.late_of("alice", late), 0);
}

#[test]
fn threads_go_when_there_is_nothing_to_do() {
    let (aside, (runs, has_run)) = (Aside::default(), channel());
    let waits: Vec<_> = (0..40).map(|n| waiting_job(&aside, &format!("tenant {n}"), &runs, n)).collect();
    begun(&has_run, 40);
    drop(waits);
    let all_of_it = || Arc::strong_count(&aside.0) - 1;
    while all_of_it() > MOST_IDLE {
        std::thread::yield_now();
    }
    assert_eq!(aside.0.work().idle, all_of_it());
}

#[test]
fn job_that_panics_takes_no_thread_with_it() {
    let (aside, (done, is_done)) = (Aside::default(), channel());
    aside.run(&party("alice"), "a test's", || std::panic::resume_unwind(Box::new("a test's")));
    aside.run(&party("alice"), "a test's", move || done.send(()).unwrap());
    is_done.recv().unwrap();
}

/// True if every copy of the other end is closed.
fn is_closed(reader: &mut PipeReader) -> bool {
    use std::io::Read;
    reader.read(&mut [0]).unwrap() == 0
}

#[test]
fn foreign_descriptors_are_closed_by_their_party() {
    let (aside, (runs, has_run)) = (Aside::default(), channel());
    let waits: Vec<_> = (0..MOST_OF_ONE as u64).map(|number| waiting_job(&aside, "alice", &runs, number)).collect();
    begun(&has_run, MOST_OF_ONE);
    let (mut reader, writer) = pipe().unwrap();
    drop(Foreign::new(writer.into(), &aside, &party("bob"), "a pipe"));
    assert!(is_closed(&mut reader));
    let (mut reader, writer) = pipe().unwrap();
    // Behind those that wait, and this thread goes on.
    drop(Foreign::new(writer.into(), &aside, &party("alice"), "a pipe"));
    let waiting = || aside.0.work().waiting.values().map(VecDeque::len).sum::<usize>();
    assert_eq!(waiting(), 1);
    drop(waits);
    assert!(is_closed(&mut reader));
    let (mut reader, writer) = pipe().unwrap();
    let own = Foreign::own(writer.into());
    let mut copy = own.try_clone().unwrap();
    copy.becomes(&aside, &party("bob"), "a pipe");
    drop((own, copy));
    assert!(is_closed(&mut reader));
}
