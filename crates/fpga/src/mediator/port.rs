//! A port as the mediator sees it.

use crate::turns::PortOrder;
use crate::virtual_accelerator::VirtualId;

/// A port and the turns at it.
#[derive(Debug)]
pub(super) struct PortTurns {
    /// The accelerator's name and its number among those of the same type.
    pub name: String,
    pub order: PortOrder,
    pub resident: Option<VirtualId>,
    /// The port's cycle counter when its resident came.
    pub since: u64,
    /// The end of the turn, in cycles of the board's clock.
    pub ends: u64,
    /// The clock when its resident came, and when the resident's job ended.
    pub came: u64,
    pub ended: Option<u64>,
    /// Cycles in which the port was between two owners.
    pub switching: u64,
}

impl PortTurns {
    pub fn new(name: String, order: PortOrder) -> PortTurns {
        PortTurns { name, order, resident: None, since: 0, ends: 0, came: 0, ended: None, switching: 0 }
    }
}
