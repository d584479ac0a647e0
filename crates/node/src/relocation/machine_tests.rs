//! The machine alone: sequences of events, and what they lead to.

use super::{
    machine::{Effects, Event, Impossible, RETURN_TIMEOUT, Refusal, Relocation},
    table::{Effect, Guard, Halt, Kind, Purpose, ROWS, Stage},
};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const STOP: Duration = Duration::from_secs(1);
const ALL: [Purpose; 5] = [Purpose::Move, Purpose::Park, Purpose::Check, Purpose::Keep, Purpose::Upgrade];

fn both() -> BTreeSet<u64> {
    [1, 2].into()
}

fn refusal() -> Refusal {
    Refusal::not_now("busy")
}

/// A relocation of the sessions 1 and 2 on a clock.
struct Machine {
    relocation: Relocation,
    now: Instant,
}

impl Machine {
    fn new(purpose: Purpose) -> Self {
        let now = Instant::now();
        let (relocation, effect) = Relocation::begin(purpose, both(), STOP, now);
        assert_eq!((relocation.stage(), effect), purpose.begins());
        Self { relocation, now }
    }

    fn kept() -> Self {
        Self { relocation: Relocation::kept(both()), now: Instant::now() }
    }

    /// Brought to a stage by the reports of honest API servers.
    fn at(purpose: Purpose, stage: Stage) -> Self {
        let mut machine = match (purpose, stage) {
            (Purpose::Park, Stage::Kept | Stage::Waiting | Stage::Replacing | Stage::Rebuilding) => Self::kept(),
            (Purpose::Upgrade, _) => {
                let mut machine = Self::kept();
                assert_eq!(machine.relocation.upgrade(machine.now), Effect::Prepare);
                machine
            }
            _ => Self::new(purpose),
        };
        let rehearse = stage == Stage::Rehearsing;
        while machine.relocation.stage() != stage {
            let (one, two) = match machine.relocation.stage() {
                Stage::Announcing => (Event::report(Kind::Announced, 1), Event::report(Kind::Announced, 2)),
                Stage::Preparing => (Event::report(Kind::Prepared, 1), Event::report(Kind::Prepared, 2)),
                Stage::Capturing => (Event::captured(1, false), Event::captured(2, rehearse)),
                Stage::Kept if stage == Stage::Replacing => (Event::new(Kind::SourceGone), Event::new(Kind::Wanted)),
                Stage::Kept if stage == Stage::Waiting => {
                    (Event::new(Kind::Wanted), Event::because(Kind::NoRoom, Refusal::not_now("full")))
                }
                Stage::Kept => (Event::new(Kind::Wanted), Event::new(Kind::Charged)),
                other => panic!("{purpose:?} has no way from {other:?} to {stage:?}"),
            };
            machine.does(&one);
            machine.does(&two);
        }
        machine
    }

    fn after(&mut self, event: &Event) -> Result<Effects, Impossible> {
        self.relocation.after(event, self.now)
    }

    /// The effects of an event that can be.
    fn does(&mut self, event: &Event) -> &'static [Effect] {
        self.after(event).unwrap_or_else(|_| panic!("{event:?} cannot be in {:?}", self.relocation.stage())).list
    }

    fn is_lie(&mut self, event: &Event) {
        assert_eq!(self.after(event), Err(Impossible), "{event:?} in {:?}", self.relocation.stage());
    }

    fn is_late(&mut self) {
        self.now = self.relocation.deadline().expect("a deadline");
    }
}

fn captured(session: u64) -> Event {
    Event::captured(session, false)
}

#[test]
fn sessions_are_paused_only_once_the_target_is_prepared_for_all() {
    let mut machine = Machine::new(Purpose::Move);
    machine.is_lie(&Event::report(Kind::Prepared, 1));
    assert_eq!(machine.does(&Event::report(Kind::Announced, 2)), &[]);
    machine.is_lie(&Event::report(Kind::Announced, 2));
    assert_eq!(machine.does(&Event::report(Kind::Announced, 1)), &[Effect::Prepare]);
    assert_eq!(machine.does(&Event::report(Kind::Prepared, 1)), &[]);
    machine.is_lie(&captured(1));
    assert_eq!(machine.does(&Event::report(Kind::Prepared, 2)), &[Effect::Capture]);
    assert_eq!((machine.relocation.stage(), machine.relocation.stop()), (Stage::Capturing, STOP));
    machine.is_lie(&Event::report(Kind::Prepared, 1));
    assert_eq!(machine.does(&captured(2)), &[]);
    assert_eq!(machine.does(&captured(1)), &[Effect::HandOver]);
    assert_eq!(machine.does(&Event::report(Kind::Rebuilt, 1)), &[]);
    assert_eq!(machine.does(&Event::report(Kind::Rebuilt, 2)), &[Effect::Commit]);
    assert_eq!((machine.does(&Event::new(Kind::Committed)), machine.relocation.stage()), (&[][..], Stage::Committed));
}

#[test]
fn kept_sessions_are_the_next_nodes_once_all_are_captured() {
    let mut machine = Machine::new(Purpose::Keep);
    assert_eq!(machine.does(&captured(2)), &[]);
    machine.is_lie(&captured(2));
    assert_eq!(machine.does(&captured(1)), &[Effect::Keep]);
    let mut refused = Machine::new(Purpose::Keep);
    assert_eq!(refused.does(&captured(2)), &[]);
    assert_eq!(refused.does(&Event::because(Kind::Refused, refusal())), &[Effect::GiveUp]);
}

/// The next node has their states before it has an API server that watches.
#[test]
fn coming_sessions_wait_for_an_api_server_that_watches() {
    let now = Instant::now();
    let mut machine = Machine { relocation: Relocation::coming(both(), now), now };
    assert!(machine.relocation.is_parked() && !machine.relocation.is_wanted());
    assert_eq!(machine.does(&Event::report(Kind::Settled, 1)), &[]);
    assert_eq!(machine.does(&Event::report(Kind::Settled, 2)), &[]);
    assert!(machine.relocation.is_quiet());
    assert_eq!(machine.does(&Event::new(Kind::Wanted)), &[Effect::Charge]);
    let mut failed = Machine { relocation: Relocation::coming(both(), now), now };
    assert_eq!(failed.does(&Event::because(Kind::Failed, refusal())), &[Effect::ReplaceSource]);
}

#[test]
fn reports_of_other_sessions_or_a_second_time_are_lies() {
    let mut machine = Machine::at(Purpose::Move, Stage::Capturing);
    for event in [Event::report(Kind::Rebuilt, 1), Event::report(Kind::Settled, 1), captured(3)] {
        machine.is_lie(&event);
    }
    assert_eq!(machine.does(&captured(1)), &[]);
    machine.is_lie(&captured(1));
}

#[test]
fn place_among_those_that_wait_for_room_is_kept_until_there_is_room() {
    let full = Event::because(Kind::NoRoom, Refusal::not_now("full"));
    let mut machine = Machine::at(Purpose::Park, Stage::Waiting);
    let since = machine.relocation.waits_for_room_since();
    assert!(since.is_some());
    machine.is_late();
    assert_eq!(machine.does(&Event::new(Kind::Due)), &[Effect::Charge]);
    machine.does(&full);
    assert_eq!(machine.relocation.waits_for_room_since(), since);
    machine.is_late();
    assert_eq!(machine.does(&Event::new(Kind::Due)), &[Effect::Charge]);
    assert_eq!(machine.does(&Event::new(Kind::Charged)), &[Effect::Rebuild]);
    assert_eq!(machine.relocation.waits_for_room_since(), None);
}

/// For each stage of each purpose, a row of the table answers the end of each process; before the commit that gives up or continues.
#[test]
fn end_of_a_process_has_a_row_in_every_stage() {
    let mut stages = 0;
    for (purpose, stage) in reached() {
        for kind in [Kind::SourceGone, Kind::TargetGone, Kind::Ended, Kind::Due] {
            let row = ROWS.iter().find(|row| {
                row.purposes.contains(&purpose) && row.stages.contains(&stage) && row.events.contains(&kind)
            });
            let is_parked = Machine::at(purpose, stage).relocation.is_parked() && purpose == Purpose::Park;
            let needless = match kind {
                Kind::TargetGone => is_parked || matches!(purpose, Purpose::Check | Purpose::Keep),
                Kind::Due => stage == Stage::Kept,
                _ => false,
            };
            assert!(row.is_some() || needless, "{purpose:?} {stage:?} {kind:?}");
        }
        stages += 1;
    }
    assert_eq!(stages, 16);
}

/// Every stage of every purpose that is not over, in the order in which the table leads to them.
pub fn reached() -> Vec<(Purpose, Stage)> {
    let mut all: Vec<_> = ALL.map(|purpose| (purpose, purpose.begins().0)).into();
    let mut at = 0;
    while let Some((purpose, stage)) = all.get(at).copied() {
        for row in ROWS.iter().filter(|row| row.purposes.contains(&purpose) && row.stages.contains(&stage)) {
            let next = row.to.map(|to| (if to == Stage::Kept { Purpose::Park } else { purpose }, to));
            all.extend(next.filter(|next| next.1 != Stage::Committed && !all.contains(next)));
        }
        at += 1;
    }
    all
}

#[test]
fn every_row_is_of_stages_that_its_purposes_reach() {
    let reached = reached();
    for row in ROWS {
        for pair in row.purposes.iter().flat_map(|purpose| row.stages.iter().map(move |stage| (*purpose, *stage))) {
            assert!(reached.contains(&pair), "{pair:?}: {row:?}");
        }
    }
}

#[test]
fn relocation_survives_its_source_only_once_everything_is_captured() {
    for (purpose, stage) in reached() {
        let mut machine = Machine::at(purpose, stage);
        let parked = machine.relocation.is_parked() && purpose == Purpose::Park;
        let given_up = machine.does(&Event::new(Kind::SourceGone)).contains(&Effect::GiveUp);
        let complete = matches!(stage, Stage::Rehearsing | Stage::Settling | Stage::Rebuilding);
        assert_eq!(given_up, !complete && !parked, "{purpose:?} {stage:?}");
        assert_eq!(machine.relocation.take_source_gone(), !parked);
    }
}

#[test]
fn rehearsed_sessions_are_rebuilt_once_more_before_the_commit() {
    let mut equal = Machine::at(Purpose::Park, Stage::Rehearsing);
    equal.is_lie(&captured(2));
    assert_eq!(equal.does(&Event::report(Kind::Settled, 1)), &[Effect::Rehearse]);
    assert_eq!(equal.does(&Event::report(Kind::Rebuilt, 2)), &[]);
    equal.is_lie(&Event::report(Kind::Rebuilt, 2));
    assert_eq!(equal.does(&Event::report(Kind::Rebuilt, 1)), &[Effect::ReplaceTarget, Effect::HandOver]);
    assert_eq!(equal.does(&Event::report(Kind::Settled, 1)), &[]);
    assert_eq!(equal.does(&Event::report(Kind::Settled, 2)), &[Effect::Commit]);
    assert_eq!((equal.does(&Event::new(Kind::Committed)), equal.relocation.stage()), (&[][..], Stage::Kept));
    for failure in [
        Event::because(Kind::Failed, refusal()),
        Event::because(Kind::Differs, refusal()),
        Event::new(Kind::TargetGone),
        Event::new(Kind::Due),
    ] {
        let mut machine = Machine::at(Purpose::Park, Stage::Rehearsing);
        machine.is_late();
        assert_eq!(machine.does(&failure), &[Effect::GiveUp], "{failure:?}");
        // Without the source the state is all there is.
        let mut alone = Machine::at(Purpose::Park, Stage::Rehearsing);
        assert_eq!(alone.does(&Event::new(Kind::SourceGone)), &[]);
        assert_eq!(alone.does(&Event::new(Kind::Due)), &[], "before its deadline");
        alone.is_late();
        assert_eq!(alone.does(&failure), &[Effect::ReplaceTarget, Effect::HandOver], "{failure:?}");
        assert_eq!((alone.relocation.stage(), alone.relocation.take_source_gone()), (Stage::Settling, true));
    }
    // An operator ends it.
    let mut ended = Machine::at(Purpose::Park, Stage::Rehearsing);
    let _ = ended.does(&Event::new(Kind::SourceGone));
    assert_eq!(ended.does(&Event::because(Kind::Ended, refusal())), &[Effect::GiveUp]);
}

#[test]
fn upgrade_that_fails_leaves_the_sessions_as_parked_as_before() {
    for stage in [Stage::Preparing, Stage::Settling] {
        for event in [
            Event::new(Kind::TargetGone),
            Event::because(Kind::Refused, refusal()),
            Event::because(Kind::Failed, refusal()),
            Event::new(Kind::Due),
        ] {
            let mut machine = Machine::at(Purpose::Upgrade, stage);
            assert_eq!(machine.does(&Event::new(Kind::Wanted)), &[], "the end of the upgrade comes back to it");
            machine.is_late();
            assert_eq!(machine.does(&event), &[Effect::GiveUp], "{stage:?} {event:?}");
            assert_eq!((machine.relocation.purpose(), machine.relocation.stage()), (Purpose::Park, Stage::Kept));
            assert_eq!(machine.does(&Event::new(Kind::Wanted)), &[Effect::Charge]);
        }
    }
    let mut machine = Machine::at(Purpose::Upgrade, Stage::Settling);
    let _ = (machine.does(&Event::new(Kind::Wanted)), machine.does(&Event::new(Kind::SourceGone)));
    assert_eq!(
        (machine.does(&Event::report(Kind::Settled, 1)), machine.does(&Event::report(Kind::Settled, 2))),
        (&[][..], &[Effect::Commit][..])
    );
    assert_eq!(machine.does(&Event::new(Kind::Committed)), &[Effect::Charge]);
}

#[test]
fn every_stage_but_kept_is_due_at_its_deadline_and_not_before() {
    for (purpose, stage) in reached() {
        let mut machine = Machine::at(purpose, stage);
        assert_eq!(machine.does(&Event::new(Kind::Due)), &[], "{purpose:?} {stage:?}");
        assert_eq!(machine.relocation.deadline().is_none(), stage == Stage::Kept);
        if stage != Stage::Kept {
            machine.is_late();
            assert_ne!(machine.does(&Event::new(Kind::Due)), &[], "{purpose:?} {stage:?}");
        }
    }
}

// Parked, and back.

#[test]
fn call_brings_both_sessions_back_once_both_are_rebuilt() {
    let mut machine = Machine::kept();
    assert_eq!(machine.relocation.told_of_parked(), "parked");
    assert_eq!(machine.does(&Event::new(Kind::Wanted)), &[Effect::Charge]);
    assert_eq!(machine.does(&Event::new(Kind::Charged)), &[Effect::Rebuild]);
    assert_eq!(
        (machine.does(&Event::new(Kind::Wanted)), machine.does(&Event::report(Kind::Rebuilt, 2))),
        (&[][..], &[][..])
    );
    machine.is_lie(&Event::report(Kind::Rebuilt, 2));
    assert_eq!(machine.relocation.told_of_parked(), "unparking");
    assert_eq!(machine.does(&Event::report(Kind::Rebuilt, 1)), &[Effect::Continue]);
}

#[test]
fn sessions_without_room_wait_for_as_long_as_it_takes() {
    let (mut machine, full) = (Machine::kept(), Event::because(Kind::NoRoom, Refusal::not_now("full")));
    let begun = machine.now;
    assert_eq!((machine.does(&Event::new(Kind::Wanted)), machine.does(&full)), (&[Effect::Charge][..], &[][..]));
    assert_eq!(machine.relocation.told_of_parked(), "parked, cannot resume yet: full");
    for _ in 0..3 {
        let before = machine.now;
        machine.is_late();
        assert!(machine.now > before);
        assert_eq!((machine.does(&Event::new(Kind::Due)), machine.does(&full)), (&[Effect::Charge][..], &[][..]));
    }
    machine.now = begun + 100 * RETURN_TIMEOUT;
    assert_eq!((machine.does(&Event::new(Kind::Due)), machine.does(&full)), (&[Effect::Charge][..], &[][..]));
    // The time of the attempts to rebuild begins once there is room.
    machine.is_late();
    assert_eq!(machine.does(&Event::new(Kind::Due)), &[Effect::Charge]);
    assert_eq!(machine.does(&Event::new(Kind::Charged)), &[Effect::Rebuild]);
    let failed = Event::because(Kind::Failed, Refusal::lasting("no"));
    assert_eq!(machine.does(&failed), &[Effect::ReplaceSource]);
    machine.now += RETURN_TIMEOUT;
    assert_eq!(machine.does(&failed), &[Effect::Lose]);
}

#[test]
fn device_without_room_is_tried_for_as_long_as_it_takes() {
    let mut machine = Machine::at(Purpose::Park, Stage::Rebuilding);
    let full = Event::because(Kind::Failed, Refusal::not_now("no memory"));
    let mut waited = Duration::ZERO;
    for attempt in 0..200 {
        assert_eq!(machine.does(&full), &[Effect::ReplaceSource], "attempt {attempt}");
        machine.does(&Event::report(Kind::Settled, 1));
        machine.does(&Event::report(Kind::Settled, 2));
        assert_eq!(machine.relocation.stage(), Stage::Waiting);
        let pause = machine.relocation.deadline().unwrap() - machine.now;
        assert!(pause <= Duration::from_secs(8), "{pause:?}");
        waited += pause;
        machine.is_late();
        assert_eq!(machine.does(&Event::new(Kind::Due)), &[Effect::Charge]);
        assert_eq!(machine.does(&Event::new(Kind::Charged)), &[Effect::Rebuild]);
    }
    assert!(waited > 20 * RETURN_TIMEOUT);
    // Other failures have their time from the last refusal on.
    let failed = Event::because(Kind::Failed, Refusal::lasting("no"));
    assert_eq!(machine.does(&failed), &[Effect::ReplaceSource]);
    machine.now += RETURN_TIMEOUT;
    assert_eq!(machine.does(&failed), &[Effect::Lose]);
}

#[test]
fn source_that_ends_is_replaced_and_what_was_wanted_still_is() {
    let mut machine = Machine::kept();
    assert_eq!(machine.does(&Event::new(Kind::SourceGone)), &[Effect::ReplaceSource]);
    assert_eq!(
        (machine.does(&Event::report(Kind::Settled, 1)), machine.does(&Event::new(Kind::Wanted))),
        (&[][..], &[][..])
    );
    machine.is_lie(&Event::report(Kind::Settled, 1));
    assert_eq!(machine.does(&Event::report(Kind::Settled, 2)), &[Effect::Charge]);
    assert_eq!(machine.does(&Event::new(Kind::Charged)), &[Effect::Rebuild]);
    // This one dies of it: the next attempt waits a moment.
    assert_eq!(machine.does(&Event::new(Kind::SourceGone)), &[Effect::ReplaceSource]);
    assert_eq!(
        (machine.does(&Event::report(Kind::Settled, 1)), machine.does(&Event::report(Kind::Settled, 2))),
        (&[][..], &[][..])
    );
    assert_eq!(machine.relocation.stage(), Stage::Waiting);
    machine.is_late();
    assert_eq!(machine.does(&Event::new(Kind::Due)), &[Effect::Charge]);
}

#[test]
fn failures_end_when_their_time_is_over_or_there_were_too_many() {
    let mut wanted = Machine::at(Purpose::Park, Stage::Rebuilding);
    wanted.now += RETURN_TIMEOUT;
    assert_eq!(wanted.after(&Event::because(Kind::Failed, Refusal::lasting("no"))).unwrap().why.reason, "no");
    let mut idle = Machine::kept();
    assert_eq!(idle.does(&Event::new(Kind::SourceGone)), &[Effect::ReplaceSource]);
    let ends: Vec<_> = (0..5).map(|_| idle.does(&Event::new(Kind::SourceGone))).collect();
    assert!(ends[..4].iter().all(|effects| *effects == [Effect::ReplaceSource]), "{ends:?}");
    assert_eq!(ends[4], &[Effect::Lose]);
}

#[test]
fn session_that_differs_in_several_processes_is_lost() {
    let (mut machine, differs) = (Machine::kept(), Event::because(Kind::Differs, Refusal::lasting("other")));
    assert_eq!(machine.does(&Event::new(Kind::Wanted)), &[Effect::Charge]);
    for _ in 1..5 {
        assert_eq!(machine.does(&Event::new(Kind::Charged)), &[Effect::Rebuild]);
        assert_eq!(machine.does(&differs), &[Effect::ReplaceSource]);
        assert_eq!(machine.relocation.told_of_parked(), "parked");
        assert_eq!(
            (machine.does(&Event::report(Kind::Settled, 1)), machine.does(&Event::report(Kind::Settled, 2))),
            (&[][..], &[][..])
        );
        assert_eq!(machine.relocation.told_of_parked(), "parked, cannot resume yet: other");
        machine.is_late();
        assert_eq!(machine.does(&Event::new(Kind::Due)), &[Effect::Charge]);
    }
    assert_eq!(machine.does(&Event::new(Kind::Charged)), &[Effect::Rebuild]);
    let lost = machine.after(&differs).unwrap();
    assert_eq!((lost.list, lost.why.reason.as_str()), (&[Effect::Lose][..], "other (in 5 processes)"));
}

// All sequences of events up to a length.

fn sequences(events: &[Event], length: u32, mut run: impl FnMut(&mut dyn Iterator<Item = &Event>)) {
    for number in 0..events.len().pow(length) {
        run(&mut (0..length).map(|digit| &events[number / events.len().pow(digit) % events.len()]));
    }
}

#[test]
fn no_sequence_of_events_commits_without_all_states() {
    let all = [
        captured(1),
        captured(2),
        Event::report(Kind::Rebuilt, 1),
        Event::report(Kind::Rebuilt, 2),
        Event::new(Kind::SourceGone),
        Event::new(Kind::TargetGone),
        Event::because(Kind::Ended, refusal()),
        Event::new(Kind::Due),
        Event::because(Kind::Refused, refusal()),
    ];
    let (mut commits, mut tried) = (0, 0u32);
    sequences(&all, 5, |events| {
        let (mut machine, mut seen) = (Machine::at(Purpose::Move, Stage::Capturing), Vec::new());
        tried += 1;
        for event in events {
            seen.push(event);
            match machine.after(event).map(|effects| effects.list) {
                Err(Impossible) | Ok([Effect::GiveUp]) => break,
                Ok([Effect::Commit]) => {
                    let steps: Vec<_> = seen.iter().filter(|event| all[..4].contains(event)).collect();
                    assert_eq!(steps.len(), 4, "{seen:?}");
                    assert!(steps[1].kind == Kind::Captured, "{seen:?}");
                    commits += 1;
                    break;
                }
                Ok(_) => {}
            }
        }
    });
    assert!(commits > 0 && tried == 9u32.pow(5));
}

/// Parked sessions continue only after a charge and after both were rebuilt since then.
#[test]
fn no_sequence_of_events_continues_without_a_charge() {
    let all = [
        Event::new(Kind::Wanted),
        Event::report(Kind::Settled, 1),
        Event::report(Kind::Settled, 2),
        Event::new(Kind::Charged),
        Event::report(Kind::Rebuilt, 1),
        Event::report(Kind::Rebuilt, 2),
        Event::new(Kind::SourceGone),
    ];
    let mut continued = 0;
    sequences(&all, 6, |events| {
        let (mut machine, mut rebuilt) = (Machine::kept(), None::<BTreeSet<u64>>);
        for event in events {
            let effects = machine.after(event).map(|effects| effects.list);
            match (&effects, event) {
                (Ok([Effect::Rebuild]), _) => rebuilt = Some(BTreeSet::new()),
                (Ok([Effect::ReplaceSource | Effect::Lose]), _) => rebuilt = None,
                (Ok(_), event) if event.kind == Kind::Rebuilt => {
                    let session = 1 + u64::from(*event == Event::report(Kind::Rebuilt, 2));
                    rebuilt.as_mut().expect("rebuilt without a charge").insert(session);
                }
                _ => {}
            }
            if effects == Ok(&[Effect::Continue]) {
                assert_eq!(rebuilt, Some(both()));
                continued += 1;
                break;
            }
        }
    });
    assert!(continued > 0);
}

#[test]
fn halts_are_between_a_report_and_the_effects_of_it() {
    for row in ROWS.iter().filter(|row| row.halt.is_some()) {
        assert!(!row.effects.is_empty() && !row.effects.contains(&Effect::GiveUp), "{row:?}");
        let commits = row.effects.contains(&Effect::Commit);
        assert_eq!(row.halt == Some(Halt::Rebuilt), commits, "{row:?}");
    }
}

// The page.

/// A word of the table as the page has it.
fn word(name: impl std::fmt::Debug) -> String {
    let name = format!("{name:?}");
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

fn words<T: std::fmt::Debug>(all: &[T]) -> String {
    all.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// The stages that a purpose passes through if nothing goes wrong.
fn way(purpose: Purpose) -> String {
    let (mut stage, first) = purpose.begins();
    let mut line = format!("{:8} ({}) {}", format!("{}:", word(purpose)), word(first), word(stage));
    let mut seen = vec![stage];
    loop {
        let forward = |row: &&super::table::Row| {
            row.purposes.contains(&purpose)
                && row.stages.contains(&stage)
                && row.to.is_some_and(|to| !seen.contains(&to))
                && row.guard != Guard::Wanted
                && !row.effects.contains(&Effect::GiveUp)
                && row.events.iter().all(|event| !matches!(event, Kind::SourceGone | Kind::Failed | Kind::NoRoom))
        };
        let Some((row, to)) = ROWS.iter().find(forward).and_then(|row| Some((row, row.to?))) else { return line };
        let to_some = if row.guard == Guard::LastToRehearse { ", if it must be rehearsed" } else { "" };
        line += &format!(" -> ({}) {}{to_some}", words(row.effects), word(to)).replace("() ", "");
        if to == Stage::Kept && purpose == Purpose::Upgrade {
            return line;
        }
        seen.push(to);
        stage = to;
    }
}

/// The part of docs/moving.md that the table writes.
fn page() -> String {
    let mut page = String::from("```text\n");
    for purpose in ALL {
        page += &format!("{}\n", way(purpose));
    }
    page += "```\n\n| purpose | stage | event | if | next stage | the node's steps |\n|---|---|---|---|---|---|\n";
    for row in ROWS {
        let ends = row.effects.iter().any(|it| matches!(it, Effect::GiveUp | Effect::Lose | Effect::Forget));
        let to = row.to.map_or_else(|| if ends { "(over)" } else { "(stays)" }.to_owned(), word);
        let (purposes, stages, events) = (words(row.purposes), words(row.stages), words(row.events));
        let (guard, effects) = (word(row.guard), words(row.effects));
        let guard = if guard == "always" { "" } else { &guard };
        page += &format!("| {purposes} | {stages} | {events} | {guard} | {to} | {effects} |\n");
    }
    page
}

/// `AVIARY_TEST_WRITE_PAGE=1` writes it.
#[test]
fn page_has_the_table() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/moving.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (begin, end) = ("<!-- relocation: written from the table -->\n", "<!-- relocation: end -->\n");
    let before = text.find(begin).expect("the page has a place for the table") + begin.len();
    let after = before + text[before..].find(end).expect("the place has an end");
    println!("{}", page());
    if std::env::var_os("AVIARY_TEST_WRITE_PAGE").is_some() {
        std::fs::write(file, format!("{}{}{}", &text[..before], page(), &text[after..])).unwrap();
        return;
    }
    assert!(text[before..after] == page(), "docs/moving.md has another table: AVIARY_TEST_WRITE_PAGE=1 writes it");
}
