//! Processes that API servers have started. Where API servers are the node's own user, their user says nothing, and the kernel's
//! record of who has started whom decides.
//!
//! In a sandbox with a PID namespace no process leaves this tree: one that loses its parent becomes a child of the namespace's
//! process 1, which the node has started. With Landlock alone one can leave it, but makes no connection
//! (`sandbox::without_sockets` of crates/cli); its process group and session still tell it.

use crate::attach::guest::Guest;
use crate::node::CoreState;
use std::{collections::HashSet, fs};

/// Ancestors that are looked at; a longer line of them is nobody's program.
const MAX_GENERATIONS: usize = 256;

impl CoreState {
    /// True for an API server, a zygote, and what they have started, and for a process of the node's user that has ended: it
    /// cannot be told apart.
    pub fn is_api_servers(&self, peer: &Guest) -> bool {
        // API servers with users of their own are told by these.
        if peer.uid != rustix::process::geteuid().as_raw() || peer.pid == 0 {
            return false;
        }
        let servers = self.registry.servers.values().map(|server| &server.process);
        let zygotes = self.spares.zygotes.values().filter_map(|place| place.zygote.as_ref());
        let zygotes = zygotes.map(|zygote| &zygote.process);
        let known: HashSet<u32> =
            servers.chain(zygotes).flat_map(|process| process.init_pid().into_iter().chain([process.pid()])).collect();
        descends(peer.pid, &known, lineage)
    }
}

/// True for a process that lives, and is one of these or was started by one.
pub fn is_started_by(process: u32, known: &HashSet<u32>) -> bool {
    lineage(process).is_some() && descends(process, known, lineage)
}

/// Whom a process belongs to.
#[derive(Debug, Clone, Copy)]
struct Lineage {
    parent: u32,
    group: u32,
    session: u32,
}

fn descends(process: u32, known: &HashSet<u32>, lineage: impl Fn(u32) -> Option<Lineage>) -> bool {
    let mut at = process;
    for _ in 0..MAX_GENERATIONS {
        if known.contains(&at) {
            return true;
        }
        let Some(Lineage { parent, group, session }) = lineage(at) else {
            // An ancestor that ends meanwhile hands its children on; the process itself is gone.
            return at == process;
        };
        if known.contains(&group) || known.contains(&session) {
            return true;
        }
        if parent <= 1 {
            return false;
        }
        at = parent;
    }
    true
}

fn lineage(process: u32) -> Option<Lineage> {
    parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Fields 4 to 6; the second one is the program's name and may contain anything, also `)`.
fn parse(stat: &str) -> Option<Lineage> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(1).map_while(|field| field.parse().ok());
    Some(Lineage { parent: fields.next()?, group: fields.next()?, session: fields.next()? })
}

#[cfg(test)]
mod tests {
    use crate::users::descent::*;

    #[test]
    fn all_that_an_api_server_has_started_is_known() {
        // Of process 7: 8 in a group of its own, 9 in a session of its own; 20 was left by its parent.
        let known = HashSet::from([7]);
        let tree = |process: u32| {
            let (parent, group, session) = match process {
                7 => (5, 5, 5),
                8 => (7, 8, 5),
                9 => (8, 9, 9),
                20 => (1, 7, 5),
                21 => (1, 21, 7),
                30 => (5, 5, 5),
                5 => (1, 5, 5),
                40 => (39, 40, 40),
                _ => return None,
            };
            Some(Lineage { parent, group, session })
        };
        for process in [7, 8, 9, 20, 21] {
            assert!(descends(process, &known, tree), "{process}");
        }
        assert!(!descends(30, &known, tree) && !descends(5, &known, tree));
        assert!(descends(99, &known, tree), "one that has ended");
        assert!(!descends(40, &known, tree), "an ancestor that has ended");
        let endless = |_| Some(Lineage { parent: 3, group: 3, session: 3 });
        assert!(descends(4, &known, endless));
    }

    #[test]
    fn own_parent_is_read() {
        let own = lineage(std::process::id()).unwrap();
        assert_eq!(own.parent, rustix::process::getppid().unwrap().as_raw_nonzero().get().cast_unsigned());
        assert!(descends(std::process::id(), &HashSet::from([own.parent]), lineage));
        assert!(parse("7 (a) b) S 4 5 6 0").is_some_and(|found| (found.parent, found.session) == (4, 6)));
        assert!(parse("7 (a").is_none());
    }
}
