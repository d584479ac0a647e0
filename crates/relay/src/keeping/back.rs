//! A gateway that goes on with a session of an earlier one. Run by `aviary gateway --kept`, which the node starts for each
//! session that it has kept, with the image as its standard input.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use aviary_control::{StateDescriptors, order_sockets, state_file};
use aviary_transport::{Arena, ControlSocket, LaneEnd, LaneError, Liveness, Side};
use aviary_wire::Decoder;
use aviary_wire::control::control_kind;

use crate::carry::carrier::{Carrier, LanePlace, MAX_LANES, locked};
use crate::carry::inbox::{Inbox, Parcel};
use crate::carry::link::{Compression, Intake};
use crate::carry::outbox::Outbox;
use crate::carry::touched::Touched;
use crate::gateway::{GatewayOptions, new_pipe};
use crate::keeping::image::{ImageError, KeptLane, KeptWay, read, read_memory};
use crate::output::Output;
use crate::resuming::handover::HandOvers;
use crate::strands::arrivals::Arrivals;

/// A session as it is in the image.
struct Kept {
    way: KeptWay,
    compresses: bool,
    arena: Arc<Arena>,
    touched: Touched,
    intake: Intake,
    arrivals: Arrivals,
    outbox: Outbox,
    lanes: Vec<KeptLane>,
}

/// Serves the session to its end; returns the reason.
pub fn gateway_again(options: GatewayOptions) -> Result<String, String> {
    let report = options.report.try_clone().map_err(|error| error.to_string())?;
    let node = ControlSocket::new(report.into());
    let kept = take(File::from(options.socket)).map_err(|error| error.to_string())?;
    let (control, guest) = UnixStream::pair().map_err(|error| error.to_string())?;
    let [(stdout, stdout_end), (stderr, stderr_end)] = [new_pipe()?, new_pipe()?];
    leave(&node, &kept.arena, guest.into(), [stdout_end, stderr_end])?;
    let (control, output) = (ControlSocket::new(control.into()), Output::sources([Some(stdout), Some(stderr)]));
    let whole = (kept.touched, kept.outbox, kept.arrivals);
    let carrier = Carrier::gateway_again(kept.arena, whole, control, output, options.grace);
    carrier.start_lanes(kept.lanes).map_err(|error| error.to_string())?;
    let compression = if kept.compresses { options.compression } else { Compression::Off };
    let way = HandOvers::again(options.report.into(), options.security, kept.way);
    way.tell_ready();
    carrier.run_again(kept.intake, compression, Box::new(way)).map_err(|error| error.to_string())
}

/// Reads the image.
fn take(file: File) -> Result<Kept, ImageError> {
    let (head, memory) = read(file)?;
    let mut from = Decoder::new(&head);
    let way = KeptWay::restored(&mut from)?;
    let (compresses, size) = (from.word()? != 0, from.word()?);
    let arena = Arena::create(usize::try_from(size).unwrap_or(0))?;
    let touched = Touched::restored(arena.size(), &mut from)?;
    let intake = Intake::restored(&mut from)?;
    let (arrivals, outbox) = (Arrivals::restored(&mut from)?, Outbox::restored(&mut from)?);
    let mut lanes = Vec::new();
    for _ in 0..from.word()? {
        if lanes.len() >= MAX_LANES {
            return Err(LaneError::Open("a number of its own").into());
        }
        lanes.push(KeptLane::restored(&mut from)?);
    }
    from.finish()?;
    read_memory(memory, &arena)?;
    Ok(Kept { way, compresses, arena, touched, intake, arrivals, outbox, lanes })
}

/// Leaves everything that an API server needs of this process in the socket that the node sends: what an earlier API server
/// would have left there.
fn leave(node: &ControlSocket, arena: &Arena, guest: OwnedFd, output: [OwnedFd; 2]) -> Result<(), String> {
    let rest = match node.receive() {
        Ok(Some((message, Some(rest)))) if message.kind == control_kind::GATEWAY_REST => rest,
        _ => return Err("the node does not say where this session's API server is".to_owned()),
    };
    let failed = |error: io::Error| format!("cannot give the session to an API server: {error}");
    let file = arena.file().ok_or("internal error: the arena has no file")?;
    let [_, handed] = order_sockets().map_err(|errno| failed(errno.into()))?;
    let descriptors = StateDescriptors {
        // The node has it.
        snapshot: state_file().map_err(|errno| failed(errno.into()))?,
        guest,
        arena: file.try_clone_to_owned().map_err(failed)?,
        output,
        handed,
        heap: None,
    };
    descriptors.leave(rest.as_fd()).map_err(failed)
}

impl Carrier {
    fn start_lanes(self: &Arc<Self>, lanes: Vec<KeptLane>) -> Result<(), ImageError> {
        for KeptLane { number, offset, length, position, delivered, parcels } in lanes {
            let length = usize::try_from(length).map_err(|_| LaneError::Open("memory"))?;
            let liveness = Arc::new(Liveness::notified());
            let end = LaneEnd::shared(&self.arena, offset, length, Side::Guest, &liveness)?.resume(position)?;
            let inbox = Arc::new(Inbox::unattended(self.output.total.clone()));
            let mut unattended = false;
            for parcel in parcels {
                let parcel = match parcel {
                    Parcel::Pieces(left) => self.arrivals.expect(number, left.first, left.end)?.map(Parcel::Pieces),
                    other => Some(other),
                };
                if let Some(parcel) = parcel {
                    unattended = inbox.push(parcel);
                }
            }
            let place = LanePlace { offset, length };
            let lane = self.start_lane(number, place, (end, liveness), inbox, delivered as usize)?;
            if locked(&self.lanes).insert(number, lane).is_some() {
                return Err(LaneError::Open("a number of its own").into());
            }
            if unattended {
                self.start_delivery(number).map_err(LaneError::Socket)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};
    use std::time::Duration;

    use aviary_transport::{ConsumerPosition, LanePosition, ProducerPosition, Region};
    use aviary_wire::{Control, Encoder};
    use proptest::prelude::*;

    use crate::carry::inbox::Batch;
    use crate::keeping::image::write;
    use crate::resuming::resume::{Proof, StrandKey, Ticket, Tickets};

    const ARENA_BYTES: usize = 8 << 20;
    const LANE: u32 = 5;

    fn head(kept: &Kept) -> Vec<u8> {
        let mut to = Encoder::new();
        to.start();
        kept.way.save(&mut to);
        to.word(u64::from(kept.compresses));
        to.word(kept.arena.size() as u64);
        kept.touched.save(&mut to);
        kept.intake.save(&mut to);
        kept.arrivals.save(&mut to);
        kept.outbox.save(&mut to);
        to.word(kept.lanes.len() as u64);
        kept.lanes.iter().for_each(|lane| lane.save(&mut to));
        to.body().to_vec()
    }

    /// A session with something of everything.
    fn session() -> Kept {
        let arena = Arena::create(ARENA_BYTES).unwrap();
        let (touched, outbox) = (Touched::new(ARENA_BYTES, 4 << 20), Outbox::default());
        for (offset, bytes) in [(0, &b"first"[..]), (70_000, b"middle"), (ARENA_BYTES as u64 - 4, b"last")] {
            arena.write(offset, bytes).unwrap();
            touched.touch(offset, bytes.len()).unwrap();
        }
        outbox.grant(LANE, 4096);
        outbox.control(LANE, &Control::default().to_bytes()).unwrap();
        outbox.message(LANE, &[7; 40_000], vec![Region { offset: 70_000, length: 6 }], true).unwrap();
        outbox.message(LANE, b"small", Vec::new(), false).unwrap();
        let mut batch = Batch::default();
        [&b"one"[..], b"two"].iter().for_each(|message| batch.push(message));
        let parcels = vec![Parcel::Message(vec![1; 5000]), Parcel::Batch(batch), Parcel::Control(Control::default())];
        let sent = ProducerPosition { written: 128, consumed: 64 };
        let position = LanePosition { sent, received: ConsumerPosition { read: 192, released: 128 } };
        let lane = KeptLane { number: LANE, offset: 4096, length: 1 << 16, position, delivered: 77, parcels };
        let [shown, fresh] = [Ticket::random().unwrap(), Ticket::random().unwrap()];
        let mut tickets = Tickets::new(shown);
        tickets.renew(&Proof { ticket: shown, number: 4, received: 0 }, fresh);
        let strands = StrandKey::new(Ticket::random().unwrap());
        let way =
            KeptWay { tenant: "alice".into(), session: [3; 16], tickets, strands, patience: Duration::from_secs(5) };
        Kept {
            way,
            compresses: true,
            arena,
            touched,
            intake: Intake::default(),
            arrivals: Arrivals::default(),
            outbox,
            lanes: vec![lane],
        }
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = File::from(state_file().unwrap());
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn session_is_taken_over_as_it_was_left() {
        let left = session();
        let image = File::from(state_file().unwrap());
        let bytes = write(image.try_clone().unwrap(), &head(&left), &left.arena).unwrap();
        assert!(bytes < 400 << 10, "zeros are left out: {bytes}");
        let taken = take(image).unwrap();
        assert!(head(&taken) == head(&left));
        let memory = |arena: &Arena| {
            let mut bytes = Vec::new();
            arena.read(0, ARENA_BYTES, &mut bytes).unwrap();
            bytes
        };
        assert!(memory(&taken.arena) == memory(&left.arena));
        assert_eq!(taken.touched.bytes(), left.touched.bytes());
        assert_eq!(taken.outbox.held(), left.outbox.held());
    }

    #[test]
    fn cut_and_foreign_images_are_refused() {
        let left = session();
        let image = File::from(state_file().unwrap());
        write(image.try_clone().unwrap(), &head(&left), &left.arena).unwrap();
        let mut bytes = Vec::new();
        let mut image = image;
        image.rewind().unwrap();
        io::Read::read_to_end(&mut image, &mut bytes).unwrap();
        let length = 16 + head(&left).len();
        for at in (0..length).step_by(1009).chain([1, 8, 15, length - 1, length + 1, length + 9, bytes.len() - 1]) {
            assert!(take(file(&bytes[..at])).is_err(), "cut at {at}");
        }
        bytes[7] += 1;
        assert!(matches!(take(file(&bytes)), Err(ImageError::Magic)), "another version");
        bytes[7] -= 1;
        // A piece of memory behind the arena.
        bytes[length..length + 8].copy_from_slice(&(ARENA_BYTES as u64).to_le_bytes());
        assert!(matches!(take(file(&bytes)), Err(ImageError::Arena(_))));
    }

    proptest! {
        #[test]
        fn changed_images_are_no_danger(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
            let left = session();
            let mut head = head(&left);
            for (at, byte) in changes {
                let at = at.index(head.len());
                // An arena of another size costs address space only, up to a TiB each time.
                head[at] = byte;
            }
            let image = File::from(state_file().unwrap());
            write(image.try_clone().unwrap(), &head, &left.arena).unwrap();
            let _ = take(image);
        }
    }
}
