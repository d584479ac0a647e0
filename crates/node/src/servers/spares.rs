//! What API servers are made from, as one value: the zygotes, and when the node starts them and further spares.

use crate::config::NodeConfig;
use crate::servers::zygote::Zygote;
use crate::tenants::vendor_set::VendorSet;
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// The place of the zygote with the node's own libraries.
pub(crate) const NODES_OWN: u64 = 0;

/// All state of starting API servers ahead of their guests, part of the node's state.
#[derive(Debug)]
pub(crate) struct Spares {
    /// When spares are started; `None`: there are enough, or the node has none.
    pub refill_at: Option<Instant>,
    /// By their places: that of the node's own libraries, and one for each vendor set that had a guest.
    pub zygotes: BTreeMap<u64, ZygotePlace>,
    last_place: u64,
}

/// A zygote, or the time at which there will be one.
#[derive(Debug)]
pub(crate) struct ZygotePlace {
    /// `None`: the node's own libraries.
    pub vendor: Option<Arc<VendorSet>>,
    pub zygote: Option<Zygote>,
    /// When the next one is started; `None`: there is one, or there will be none.
    pub due: Option<Instant>,
}

impl Spares {
    /// What the configuration says is started at once.
    pub fn new(config: &NodeConfig) -> Spares {
        let refill_at = (config.spares > 0).then(Instant::now);
        let own = ZygotePlace { vendor: None, zygote: None, due: config.zygote.as_ref().map(|_| Instant::now()) };
        Spares { refill_at, zygotes: [(NODES_OWN, own)].into(), last_place: NODES_OWN }
    }

    /// The place of the zygote with these libraries.
    pub fn place_of(&mut self, vendor: Option<&Arc<VendorSet>>) -> Option<(u64, &mut ZygotePlace)> {
        self.zygotes.iter_mut().find(|(_, place)| place.vendor.as_ref() == vendor).map(|(id, place)| (*id, place))
    }

    /// A vendor set is used for the first time: its zygote is due.
    pub fn add_place(&mut self, vendor: Arc<VendorSet>, now: Instant) {
        self.last_place += 1;
        self.zygotes.insert(self.last_place, ZygotePlace { vendor: Some(vendor), zygote: None, due: Some(now) });
    }

    /// The zygote that copies for new guests are made of, if it is ready.
    pub fn ready(&self, vendor: Option<&VendorSet>) -> Option<&Zygote> {
        let mut of_set = self.zygotes.values().filter(|place| place.vendor.as_deref() == vendor);
        of_set.find_map(|place| place.zygote.as_ref().filter(|zygote| zygote.ready))
    }

    /// The libraries that spares are kept with: the node's own, and those of vendor sets whose zygote is ready.
    pub fn kept(&self) -> Vec<Option<Arc<VendorSet>>> {
        let is_kept = |place: &&ZygotePlace| place.vendor.is_none() || place.zygote.as_ref().is_some_and(|z| z.ready);
        self.zygotes.values().filter(is_kept).map(|place| place.vendor.clone()).collect()
    }

    /// When the next zygote is started.
    pub fn next_zygote(&self) -> Option<Instant> {
        self.zygotes.values().filter_map(|place| place.due).min()
    }
}
