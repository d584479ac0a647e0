//! FPGA cards in the node's configuration file and on its command line.

use crate::config::error::CardError;
use crate::config::values::{is_plain, parse_mode};
use aviary_node::CardSettings;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// `[fpga.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardConfig {
    /// Name or file.
    image: String,
    /// `fpga-NAME.sock` beside the node's if it is not there.
    socket: Option<PathBuf>,
    /// Octal, as a string; the node's if it is not there.
    mode: Option<String>,
}

impl CardConfig {
    /// `node`: the node's socket, and `mode` its permissions.
    pub fn settings(&self, name: &str, node: &Path, mode: u32) -> CardSettings {
        let usual = card_at(name, &self.image, node, mode);
        let own = self.mode.as_deref().and_then(|mode| parse_mode(mode).ok());
        CardSettings { socket: self.socket.clone().unwrap_or(usual.socket), mode: own.unwrap_or(mode), ..usual }
    }
}

/// `taken`: sockets of others, with their names.
pub fn check_cards<'a>(
    cards: &'a BTreeMap<String, CardConfig>,
    taken: impl Iterator<Item = (&'a Path, &'a str)>,
) -> Result<(), CardError> {
    let mut owners: BTreeMap<&Path, &str> = taken.collect();
    for (name, card) in cards {
        if let Some(Err(reason)) = card.mode.as_deref().map(parse_mode) {
            return Err(CardError::Mode { card: name.clone(), reason });
        }
        let Some(socket) = &card.socket else { continue };
        if !socket.is_absolute() {
            return Err(CardError::RelativeSocket { card: name.clone() });
        }
        if let Some(other) = owners.insert(socket, name) {
            return Err(CardError::TwoOwners { card: name.clone(), other: other.to_owned() });
        }
    }
    Ok(())
}

/// A card with the usual socket.
pub fn card_at(name: &str, image: &str, node: &Path, mode: u32) -> CardSettings {
    let socket = node.with_file_name(format!("fpga-{name}.sock"));
    CardSettings { name: name.to_owned(), image: image.to_owned(), socket, mode }
}

/// `NAME=IMAGE`.
pub fn parse_card(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, image)) if is_plain(name) && !image.is_empty() => Ok((name.to_owned(), image.to_owned())),
        _ => Err(format!("`{text}`: expected NAME=IMAGE; a card's name consists of letters, digits, `-`, `_` and `.`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BTreeMap<String, CardConfig>, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn cards_are_read() {
        let cards =
            read("[a]\nimage = \"all\"\n[b]\nimage = \"/x.so\"\nsocket = \"/run/b\"\nmode = \"666\"\n").unwrap();
        check_cards(&cards, [(Path::new("/run/vm"), "vm")].into_iter()).unwrap();
        let settings = |name: &str| cards[name].settings(name, Path::new("/run/node.sock"), 0o600);
        assert_eq!(settings("a"), card_at("a", "all", Path::new("/run/node.sock"), 0o600));
        assert_eq!(settings("a").socket, Path::new("/run/fpga-a.sock"));
        assert_eq!((settings("b").socket, settings("b").mode), (PathBuf::from("/run/b"), 0o666));
        assert_eq!(parse_card("a=all"), Ok(("a".into(), "all".into())));
        assert!(parse_card("a").is_err() && parse_card("a b=x").is_err() && parse_card("a=").is_err());
    }

    #[test]
    fn mistakes_are_told() {
        for (wrong, why) in [
            ("[a]\nimage = \"x\"\nsocket = \"a.sock\"\n", "absolute"),
            ("[a]\nimage = \"x\"\nmode = \"9\"\n", "mode"),
            (
                "[a]\nimage = \"x\"\nsocket = \"/a\"\n[b]\nimage = \"x\"\nsocket = \"/a\"\n",
                "`b` has the same socket as `a`",
            ),
            ("[a]\nimage = \"x\"\nsocket = \"/run/vm\"\n", "as `vm`"),
        ] {
            let cards = read(wrong).unwrap();
            let error = check_cards(&cards, [(Path::new("/run/vm"), "vm")].into_iter()).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        assert!(read("[a]\nsocket = \"/a\"\n").is_err() && read("[a]\nimage = \"x\"\nother = 1\n").is_err());
    }
}
