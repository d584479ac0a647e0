//! Callbacks of the vendor's library on their way to the guest.

pub mod closures;
pub mod lane;
pub mod outgoing;
pub mod posted;

use lane::CallbackLane;
use posted::PostedCallbacks;

/// The ways of callbacks for which no call of the guest waits.
#[derive(Default)]
pub struct Callbacks {
    pub lane: CallbackLane,
    pub posted: PostedCallbacks,
}
