//! What API servers are made from, as one value: the zygote, and when the node starts it and further spares.

use crate::config::NodeConfig;
use crate::servers::zygote::Zygote;
use std::time::Instant;

/// All state of starting API servers ahead of their guests, part of the node's state.
#[derive(Debug)]
pub(crate) struct Spares {
    /// When spares are started; `None`: there are enough, or the node has none.
    pub refill_at: Option<Instant>,
    pub zygote: Option<Zygote>,
    /// When the next zygote is started.
    pub zygote_at: Option<Instant>,
}

impl Spares {
    /// What the configuration says is started at once.
    pub fn new(config: &NodeConfig) -> Spares {
        let refill_at = (config.spares > 0).then(Instant::now);
        Spares { refill_at, zygote: None, zygote_at: config.zygote.as_ref().map(|_| Instant::now()) }
    }
}
