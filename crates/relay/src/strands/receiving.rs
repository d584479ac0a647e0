//! A carrier's part in pieces that arrive: their places, and the messages that wait for them. Called by strands and by the network
//! reader; what a hostile peer can do is bounded by [`crate::strands::arrivals`] and by the arena's memory.

use std::sync::Arc;

use aviary_transport::Region;

use crate::carry::carrier::{Carrier, locked};
use crate::carry::inbox::Parcel;
use crate::strands::arrivals::PieceError;
use crate::strands::pieces::PIECE_HEAD;

impl Carrier {
    /// A piece, from any strand. It is written once.
    pub fn arrived_piece(&self, payload: &[u8]) -> Result<(), String> {
        let head = payload.split_first_chunk::<8>().filter(|(_, region)| region.len() >= PIECE_HEAD - 8);
        let (number, region) = head.ok_or_else(|| PieceError::Head.to_string())?;
        let number = u64::from_le_bytes(*number);
        if !self.arrivals.begin(number).map_err(|e| e.to_string())? {
            return Ok(());
        }
        // A guest is told before the message can be whole: it takes what it is told for a part of the reply that it waits for.
        self.arrived_region(self.arrivals.lane_of(number), region)?;
        let whole = self.arrivals.finish(number);
        let lanes = locked(&self.lanes);
        if let Some(lane) = whole.and_then(|number| lanes.get(&number)) {
            lane.inbox.look();
        }
        Ok(())
    }

    /// Tells the guest of a region that has arrived ahead of its message, if nobody is at the lane's ring.
    pub fn tell(&self, lane: u32, region: Region) {
        let Some((_, sink)) = self.of_lane(lane) else { return };
        if let Ok(mut sink) = sink.try_lock() {
            sink.tell(region);
        };
    }

    /// The next message of this lane waits for pieces.
    pub fn announced(self: &Arc<Self>, lane: u32, payload: &[u8]) -> Result<(), String> {
        let numbers = payload.split_first_chunk::<8>().and_then(|(first, end)| Some((first, end.try_into().ok()?)));
        let (first, end) = numbers.ok_or_else(|| PieceError::Head.to_string())?;
        // The lane has just ended, or is one that has no bulk data.
        let Some((inbox, _)) = self.of_lane(lane) else { return Ok(()) };
        let awaited = self.arrivals.expect(lane, u64::from_le_bytes(*first), u64::from_le_bytes(end));
        match awaited.map_err(|e| e.to_string())? {
            Some(awaited) => {
                let unattended = self.accept(&inbox, Parcel::Pieces(awaited))?;
                self.attend_if(unattended, lane)
            }
            None => Ok(()),
        }
    }
}
