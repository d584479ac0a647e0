//! A parked session in the process that will make it anew: nothing of it is made, and its program's calls are watched for.

use std::time::Instant;

use aviary_control::MoveReport;

use super::{Arriving, Connected};
use crate::moving::stage::MoveStage;
use crate::moving::watch::Watch;

impl Connected {
    /// A session from another process: rebuilt at once, or parked. An error is the reason why it ends, or stays there.
    pub fn arrive(&mut self, arriving: Arriving, parked: bool, begun: Instant) -> Result<(), String> {
        self.arriving = Some(arriving);
        if parked { self.keep_parked() } else { self.rebuild(begun) }
    }

    /// The lanes are watched until the order to rebuild the session.
    fn keep_parked(&mut self) -> Result<(), String> {
        self.stage = MoveStage::Watching;
        let mut watch = Watch::new().map_err(|error| error.to_string())?;
        for lane in self.link.lanes.values() {
            if lane.stopped.taken.is_some() {
                watch.call();
            }
            let (end, liveness) = self.end_at(lane.place, lane.stopped.position)?;
            watch.add(end, liveness)?;
        }
        if let Some(arriving) = &mut self.arriving {
            arriving.watch = Some(watch);
        }
        self.report(&MoveReport::Parked)
    }

    pub(super) fn report_sign(&mut self) -> Result<(), String> {
        self.stop_watching();
        self.report(&MoveReport::Wanted)
    }

    pub(super) fn rebuild_parked(&mut self) -> Result<(), String> {
        self.stop_watching();
        self.rebuild(Instant::now())
    }

    /// One sign of life is enough, and no watch looks at a lane that is served.
    fn stop_watching(&mut self) {
        if let Some(arriving) = &mut self.arriving {
            arriving.watch = None;
        }
    }
}
