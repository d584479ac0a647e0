//! Moves of programs to other ports of their cards, which an operator orders.

use super::{
    Card, CardState, Cards,
    request::{CardMove, CardMoveReport, CardMoveRequest},
};
use crate::log::Level;
use crate::sessions::events::shown_reason;
use aviary_control::{Patience, ToCard, send};
use std::os::fd::AsFd;

/// The reason why a move is not begun, or not known.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum CardMoveError {
    /// session {0} is not at an FPGA card (`aviary ps` lists them)
    NoSession(u64),
    /// session {session} is at card {card} and can only be moved to another port of it
    OtherCard { session: u64, card: String },
    /// there is no port {0} (`aviary ps` lists cards and ports)
    NoPort(String),
    /// session {0} is being moved already
    Busy(u64),
    /// session {0} was never moved
    NeverMoved(u64),
    /// cannot send the order to the card's process: {0}
    Untold(String),
}

impl Cards {
    /// Tells a card to move a session; its answer comes later.
    pub fn begin_move(&mut self, request: &CardMoveRequest) -> Result<CardMoveReport, CardMoveError> {
        let CardMoveRequest { session, port } = request;
        let known = self.sessions.get(session).ok_or(CardMoveError::NoSession(*session))?;
        if known.moving.as_ref().is_some_and(|last| last.report == CardMoveReport::Moving) {
            return Err(CardMoveError::Busy(*session));
        }
        let no_port = || CardMoveError::NoPort(port.escape_debug().to_string());
        let card = self.list.get(&known.card).ok_or(CardMoveError::NoSession(*session))?;
        let (card_name, name) = port.split_once('/').ok_or_else(no_port)?;
        if card_name != card.settings.name {
            let other = self.list.values().any(|other| other.settings.name == card_name);
            let card = card.settings.name.escape_debug().to_string();
            return Err(if other { CardMoveError::OtherCard { session: *session, card } } else { no_port() });
        }
        let CardState::Serving { ports, .. } = &card.state else { return Err(no_port()) };
        if !ports.contains_key(name) {
            return Err(no_port());
        }
        let order = ToCard::Move { session: *session, port: name.to_owned() };
        let told = match Card::process(card) {
            Some(process) => {
                send(process.control.as_fd(), &order, &[], Patience::None).map_err(|error| error.to_string())
            }
            None => Err("it has no process".to_owned()),
        };
        told.map_err(CardMoveError::Untold)?;
        let begun = CardMove { port: port.clone(), report: CardMoveReport::Moving };
        if let Some(known) = self.sessions.get_mut(session) {
            known.moving = Some(begun);
        }
        Ok(CardMoveReport::Moving)
    }

    /// Where the last move of a session is.
    pub fn move_of(&self, session: u64) -> Result<CardMoveReport, CardMoveError> {
        let known = self.sessions.get(&session).ok_or(CardMoveError::NoSession(session))?;
        let last = known.moving.as_ref().ok_or(CardMoveError::NeverMoved(session))?;
        Ok(last.report.clone())
    }

    /// A card answers. It may be taken over, and says what it likes about sessions of its own only. Answers a line for the log.
    pub(super) fn note_move(&mut self, place: u64, session: u64, refusal: Option<String>) -> Option<(Level, String)> {
        let known = self.sessions.get_mut(&session).filter(|known| known.card == place)?;
        let last = known.moving.as_mut().filter(|last| last.report == CardMoveReport::Moving)?;
        let port = last.port.escape_debug().to_string();
        let (line, report) = match refusal {
            None => {
                let line = format!("session {session}: moved to port {port} by an operator");
                ((Level::Info, line), CardMoveReport::Moved { port })
            }
            Some(reason) => {
                let reason = shown_reason(&reason);
                let line = format!("session {session}: not moved to port {port}: {reason}");
                ((Level::Warn, line), CardMoveReport::Refused { reason })
            }
        };
        last.report = report;
        Some(line)
    }
}
