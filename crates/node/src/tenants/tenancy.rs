//! The node's tenants as one value: their settings, their accounts, and which of them the node still knows.
//!
//! Everything here is the node's own. What API servers write into the pages of accounts is checked where it is read.

use crate::tenants::accounts::{Accounts, AssignedSlot};
use crate::tenants::last_uses::LastUses;
use crate::tenants::rewrites::Rewrites;
use crate::tenants::shares::Shares;
use crate::users::user_database::UserDatabase;
use std::collections::{BTreeSet, HashMap};

/// All state of tenants, part of the node's state.
#[derive(Debug)]
pub(crate) struct Tenancy {
    pub shares: Shares,
    /// The pages of tenants, which API servers get.
    pub accounts: Accounts,
    /// Of memory that is mapped for cards: pages that no API server gets.
    pub card_accounts: Accounts,
    /// Tenants whose accounts are not what the node has written.
    pub rewrites: Rewrites,
    /// Which tenant goes when there is no room for a new one.
    pub last_uses: LastUses,
    /// Tenants without an entry in the configuration that are known at a time.
    pub most_tenants: usize,
    /// Who has an entry there, where tenants depend on it.
    pub users: UserDatabase,
    /// Places in tenants' pages of API servers that were reaped and whose control groups are not known to be empty.
    pub emptying: HashMap<u64, AssignedSlot>,
}

impl Tenancy {
    /// `resources`: what the accounts are of. `users`: answers for which user ids the machine's user database has an entry.
    pub fn new(
        shares: Shares,
        resources: Option<BTreeSet<String>>,
        most_tenants: usize,
        users: UserDatabase,
    ) -> Tenancy {
        let [accounts, card_accounts] = [(); 2].map(|()| Accounts::of(resources.clone()));
        Tenancy {
            shares,
            accounts,
            card_accounts,
            rewrites: Rewrites::default(),
            last_uses: LastUses::default(),
            most_tenants,
            users,
            emptying: HashMap::new(),
        }
    }

    /// Tenants that have or had sessions.
    pub fn names_of_accounts(&self) -> BTreeSet<String> {
        self.accounts.names().into_iter().chain(self.card_accounts.names()).collect()
    }
}
