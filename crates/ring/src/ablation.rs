//! Terms of scheduling and waiting that a build for measurements can leave out, to see what each is worth.
//!
//! Only a build with `--cfg aviary_ablation` has the choice (`./x bench --without TERM`); in every other one [`without`]
//! is the constant `false`, and costs nothing. Called by waits (this crate), lanes (server) and boosts (node). The
//! variable is read once in each process: the program, its API server and the node are told the same.

/// A part of scheduling or waiting that the rest works without, slower or less fairly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// The thread that is granted a device is a real-time thread for a moment.
    Boost,
    /// A session that floods its API server with calls yields the CPUs.
    Yield,
    /// A guest's thread is woken before its first answer after a grant.
    GuestWake,
    /// A lane watches the device before it sleeps over work that the guest waits for.
    CompletionPoll,
    /// A device is kept for a session only while that tends to come back in time; without: always.
    ReuseHint,
    /// The threads of a session may stay awake for the device.
    Awake,
    /// A device is kept for a session that has no work for a moment.
    Linger,
    /// Only sessions that call often stay awake; without: all that may use the device.
    LatencySensitive,
    /// A side yields its CPU to a peer that runs there, and spins only for a short time where it was woken.
    SharedCpu,
    /// A sleeper wakes up shortly before the predicted end of its wait.
    Predictor,
    /// A thread that was woken without a message spins before it sleeps again.
    PostWakeSpin,
    /// A side spins before it sleeps.
    Spin,
}

/// The terms by the names that `--without` takes.
pub const TERMS: &[(&str, Term)] = &[
    ("boost", Term::Boost),
    ("yield", Term::Yield),
    ("guest-wake", Term::GuestWake),
    ("completion-poll", Term::CompletionPoll),
    ("reuse-hint", Term::ReuseHint),
    ("awake", Term::Awake),
    ("linger", Term::Linger),
    ("latency-sensitive", Term::LatencySensitive),
    ("shared-cpu", Term::SharedCpu),
    ("predictor", Term::Predictor),
    ("post-wake-spin", Term::PostWakeSpin),
    ("spin", Term::Spin),
];

/// Whether this build for measurements was told to leave the term out.
#[cfg(not(aviary_ablation))]
#[inline]
pub const fn without(_: Term) -> bool {
    false
}

/// Whether this build for measurements was told to leave the term out.
///
/// # Panics
/// At a name that is no term's: a measurement without it would be one of something else.
#[cfg(aviary_ablation)]
#[inline]
pub fn without(term: Term) -> bool {
    static LEFT_OUT: std::sync::OnceLock<Vec<Term>> = std::sync::OnceLock::new();
    LEFT_OUT.get_or_init(|| parse(&std::env::var("AVIARY_WITHOUT").unwrap_or_default())).contains(&term)
}

/// The terms of a list with commas.
///
/// # Panics
/// At a name that is no term's.
#[cfg(any(aviary_ablation, test))]
fn parse(names: &str) -> Vec<Term> {
    let term = |name: &str| {
        let known = TERMS.iter().find(|(known, _)| *known == name);
        known.unwrap_or_else(|| panic!("AVIARY_WITHOUT: there is no term {name}")).1
    };
    names.split(',').filter(|name| !name.is_empty()).map(term).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_list() {
        assert_eq!(parse(""), []);
        assert_eq!(parse("boost,spin"), [Term::Boost, Term::Spin]);
        assert!(std::panic::catch_unwind(|| parse("boosts")).is_err());
    }

    #[test]
    fn usual_builds_leave_nothing_out() {
        assert!(cfg!(aviary_ablation) || TERMS.iter().all(|(_, term)| !without(*term)));
    }
}
