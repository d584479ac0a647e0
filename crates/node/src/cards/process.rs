//! The processes of cards: their start, their end, what they tell, and changes of the configuration.

use super::{Card, CardCommand, CardProcess, CardSettings, CardState, rules::port_rules};
use crate::epoll::Token;
use crate::error::NodeError;
use crate::helpers::HelperProcess;
use crate::node::{Core, CoreState};
use crate::scheduling::rules::Rules;
use aviary_control::{Aside, Foreign, FromCard, Heard, Patience, PortFigures, ToCard, hear, send};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    io,
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// A card whose process has ended while it served may end soon again.
const CARD_RESTART_BACKOFF: Duration = Duration::from_secs(1);
/// Messages of one card between two looks at others.
const MESSAGES_PER_EVENT: usize = 64;

impl Core {
    /// Starts processes of cards that have none.
    pub(crate) fn start_cards(&self) {
        let now = Instant::now();
        let mut state = self.state();
        let CoreState { cards, server_users, .. } = &mut *state;
        let due = |card: &Card| matches!(card.state, CardState::Due(at) if at <= now);
        for (place, card) in cards.list.iter_mut().filter(|(_, card)| due(card)) {
            let name = card.settings.name.escape_debug();
            let user = server_users.as_mut().map_or(Ok(None), |users| users.helper(&format!("card {name}")));
            let spawned = user.and_then(|user| {
                let spawned = spawn(&self.config.card, &card.settings, user, &self.aside);
                spawned.map_err(|error| NodeError::Spawn(self.config.card.program.clone(), error))
            });
            let started = spawned.and_then(|process| {
                let watched = self
                    .epoll
                    .add(process.helper.exit.as_fd(), Token::CardExit(*place))
                    .and_then(|()| self.epoll.add(process.control.as_fd(), Token::CardControl(*place)));
                match watched {
                    Ok(()) => Ok(process),
                    Err(error) => {
                        process.helper.kill();
                        self.part_from_card(process);
                        Err(error)
                    }
                }
            });
            card.state = match started {
                Ok(process) => {
                    let (pid, image) = (process.helper.pid(), card.settings.image.escape_debug());
                    self.log.info(format_args!("card {name}: process {pid} loads the image {image} (simulated)"));
                    CardState::Starting(process)
                }
                Err(error) => {
                    self.log.error(format_args!("card {name} cannot be started: {error}"));
                    CardState::Due(now + CARD_RESTART_BACKOFF)
                }
            };
        }
    }

    /// A card tells something.
    pub(crate) fn hear_card(&self, place: u64) {
        let mut state = self.state();
        for _ in 0..MESSAGES_PER_EVENT {
            let Some(process) = state.cards.list.get(&place).and_then(Card::process) else { return };
            match hear(process.control.as_fd()) {
                Heard::Message(message) => self.heed_card(&mut state, place, message),
                Heard::Nothing => return,
                Heard::Closed => return self.epoll.remove(process.control.as_fd()),
                Heard::Garbage(garbage) => {
                    self.log.error(format_args!("a card's process sent {garbage}: it is killed"));
                    process.helper.kill();
                    return self.epoll.remove(process.control.as_fd());
                }
            }
        }
    }

    fn heed_card(&self, state: &mut CoreState, place: u64, message: FromCard) {
        let rules = ToCard::Rules { rules: port_rules(&state.tenancy.shares.rules(), &mut Vec::new()) };
        let Some(card) = state.cards.list.get_mut(&place) else { return };
        match message {
            FromCard::Ready { ports } => {
                let CardState::Starting(process) = std::mem::replace(&mut card.state, CardState::Failed) else {
                    return;
                };
                let (name, socket) = (card.settings.name.escape_debug(), card.settings.socket.display());
                self.log.info(format_args!("card {name}: serving {} on {socket}", ports.join(", ")));
                let figures = |port: String| (port.clone(), PortFigures { port, tenants: Vec::new() });
                let told = send(process.control.as_fd(), &rules, &[], Patience::None);
                card.state = CardState::Serving { process, ports: ports.into_iter().map(figures).collect() };
                let watched = self.epoll.add(card.listener.socket.as_fd(), Token::Card(place));
                let failed = told.map_err(|error| error.to_string()).and(watched.map_err(|error| error.to_string()));
                if let Err(error) = failed {
                    self.log.error(format_args!("card {}: {error}", card.settings.name.escape_debug()));
                }
            }
            FromCard::Port(figures) => {
                if let CardState::Serving { ports, .. } = &mut card.state
                    && let Some(known) = ports.get_mut(&figures.port)
                {
                    *known = figures;
                }
            }
            FromCard::Client(figures) => {
                if let Some(session) = state.cards.sessions.get_mut(&figures.session).filter(|own| own.card == place) {
                    session.figures = Some(figures);
                }
            }
            FromCard::Moved { session, refusal } => {
                if let Some((level, line)) = state.cards.note_move(place, session, refusal) {
                    self.log.at(level, line);
                }
            }
            FromCard::Ended { session } => {
                if state.cards.sessions.get(&session).is_some_and(|own| own.card == place) {
                    self.settle_card_session(state, session);
                }
            }
        }
    }

    pub(crate) fn reap_card(&self, place: u64) {
        let mut state = self.state();
        let Some(card) = state.cards.list.get_mut(&place) else { return };
        let served = matches!(card.state, CardState::Serving { .. });
        // Programs that connect wait for its next process, or are refused.
        let next = if served { CardState::Due(Instant::now() + CARD_RESTART_BACKOFF) } else { CardState::Failed };
        let (CardState::Starting(process) | CardState::Serving { process, .. }) =
            std::mem::replace(&mut card.state, next)
        else {
            return;
        };
        if served {
            self.epoll.remove(card.listener.socket.as_fd());
        } else if let Err(error) = self.epoll.add(card.listener.socket.as_fd(), Token::Card(place)) {
            self.log.error(error);
        }
        let name = card.settings.name.escape_debug().to_string();
        let how = self.part_from_card(process);
        self.log.error(match served {
            true => format!(
                "card {name}: its process ended ({how}): its clients lose their accelerators, and it is started again"
            ),
            false => format!("card {name} is not available: its process ended before it was ready ({how})"),
        });
        self.settle_card(&mut state, place);
    }

    /// Reaps a process that has ended or was killed. A descriptor of a client can keep one for as long as that likes.
    fn part_from_card(&self, process: CardProcess) -> String {
        self.epoll.remove(process.helper.exit.as_fd());
        self.epoll.remove(process.control.as_fd());
        let pid = process.helper.pid();
        match process.helper.part() {
            Some(end) => end.to_string(),
            None => {
                self.log.error(format_args!("process {pid} of a card was killed and does not end: it is left behind"));
                "it does not end".to_owned()
            }
        }
    }

    /// Nothing is left of the sessions of a card.
    fn settle_card(&self, state: &mut CoreState, place: u64) {
        let lost: Vec<u64> =
            state.cards.sessions.iter().filter(|(_, own)| own.card == place).map(|(id, _)| *id).collect();
        lost.into_iter().for_each(|session| self.settle_card_session(state, session));
    }

    /// Removes the socket, and ends the process.
    fn end_card(&self, state: &mut CoreState, place: u64) {
        let Some(card) = state.cards.list.remove(&place) else { return };
        self.epoll.remove(card.listener.socket.as_fd());
        if let CardState::Starting(process) | CardState::Serving { process, .. } = card.state {
            // Now: it holds nothing that is worth an orderly end.
            process.helper.kill();
            self.part_from_card(process);
        }
        self.settle_card(state, place);
    }

    pub(crate) fn end_cards(&self, state: &mut CoreState) {
        let places: Vec<u64> = state.cards.list.keys().copied().collect();
        places.into_iter().for_each(|place| self.end_card(state, place));
    }

    /// The cards from now on. What is not possible is left out, and the result says why. A card with another image or socket is
    /// started anew, and its clients are lost; so is one that has failed.
    pub(crate) fn change_cards(&self, state: &mut CoreState, settings: &[CardSettings]) -> Vec<String> {
        let same = |card: &Card, new: &CardSettings| {
            let (old, failed) = (&card.settings, matches!(card.state, CardState::Failed));
            (&new.name, &new.image, &new.socket) == (&old.name, &old.image, &old.socket) && !failed
        };
        let gone = |(_, card): &(&u64, &Card)| !settings.iter().any(|new| same(card, new));
        let gone: Vec<u64> = state.cards.list.iter().filter(gone).map(|(place, _)| *place).collect();
        for place in gone {
            if let Some(card) = state.cards.list.get(&place) {
                self.log.info(format_args!("card {} is removed", card.settings.name.escape_debug()));
            }
            self.end_card(state, place);
        }
        let mut notes = Vec::new();
        for new in settings {
            let known = state.cards.list.values_mut().find(|card| card.settings.name == new.name);
            let changed = match known {
                Some(card) => {
                    card.settings = new.clone();
                    fs::set_permissions(&new.socket, Permissions::from_mode(new.mode))
                        .map_err(|error| format!("{}: {error}", new.socket.display()))
                }
                None => state.cards.add(new, &self.aside).map_err(|error| error.to_string()),
            };
            notes.extend(changed.err().map(|why| format!("card {}: {why}", new.name.escape_debug())));
        }
        notes
    }

    /// The shares have changed: those of these tenants, and the rules of devices if they are not `before` any more. Answers
    /// what cards do not have.
    pub(crate) fn tell_cards_shares(
        &self,
        state: &CoreState,
        before: &Arc<Rules>,
        tenants: &BTreeSet<String>,
    ) -> Vec<String> {
        let (now, mut notes) = (state.tenancy.shares.rules(), Vec::new());
        if !Arc::ptr_eq(before, &now) && !state.cards.list.is_empty() {
            let rules = port_rules(&now, &mut notes);
            if rules != port_rules(before, &mut Vec::new()) {
                self.tell_cards(state, &ToCard::Rules { rules });
            }
        }
        for name in tenants {
            let share = state.tenancy.shares.of(name);
            let share = ToCard::Share { tenant: name.clone(), weight: share.weight, priority: share.priority };
            self.tell_cards(state, &share);
        }
        notes
    }

    /// Those of a program before may have been others.
    pub(crate) fn tell_cards_rules(&self, state: &CoreState) {
        let rules = port_rules(&state.tenancy.shares.rules(), &mut Vec::new());
        self.tell_cards(state, &ToCard::Rules { rules });
    }

    fn tell_cards(&self, state: &CoreState, message: &ToCard) {
        for card in state.cards.list.values() {
            let CardState::Serving { process, .. } = &card.state else { continue };
            if let Err(error) = send(process.control.as_fd(), message, &[], Patience::None) {
                self.log.warn(format_args!(
                    "card {}: its process did not get changed settings ({error}): the old ones stay in effect",
                    card.settings.name
                ));
            }
        }
    }
}

fn spawn(command: &CardCommand, settings: &CardSettings, user: Option<u32>, aside: &Aside) -> io::Result<CardProcess> {
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let control = Foreign::new(control, aside, &format!("(card {})", settings.name).into(), "the socket of a card");
    let mut process = Command::new(&command.program);
    process
        .arg0("aviary")
        .args(&command.arguments)
        .args(["--name", &settings.name, "--image", &settings.image])
        // It reads what clients send, and needs nothing of the node's.
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        // Signals from the terminal are for the node, which ends its cards itself.
        .process_group(0);
    if let Some(user) = user {
        process.args(["--user", &user.to_string()]);
    }
    Ok(CardProcess { helper: HelperProcess::spawn(&mut process, aside)?, control })
}
