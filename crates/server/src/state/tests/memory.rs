//! Memory of the library's that the guest knows by numbers: what the application frees, and what it uses with an object.

use std::collections::HashSet;

use aviary_wire::resident;

use super::*;

pub const LEND: u32 = 25;
pub const GIVE: u32 = 26;
pub const PLACE: u32 = 27;

/// Of the functions that free what `lend` hands out.
const GROUP: u32 = 7;
const PLACE_BYTES: usize = 16;

/// Pieces that are lent, of all sessions, by their addresses.
static PIECES: Mutex<Option<HashSet<usize>>> = Mutex::new(None);
/// Memory of objects, by their native values.
static PLACES: Mutex<Option<HashMap<u64, &'static [u8; PLACE_BYTES]>>> = Mutex::new(None);
/// Pieces have no memory: nothing looks into them.
static NEXT_PIECE: AtomicU64 = AtomicU64::new(0x10_0000);

fn pieces<R>(look: impl FnOnce(&mut HashSet<usize>) -> R) -> R {
    look(PIECES.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert_default())
}

fn lent_by(side: &Side) -> usize {
    side.session.tables.foreign.counts()[0]
}

/// Two pieces of memory, which belong to no object.
pub unsafe fn lend(call: &mut Call) -> Result<(), Reject> {
    call.handle(0)?;
    for _ in 0..2 {
        let address = NEXT_PIECE.fetch_add(64, Ordering::SeqCst) as usize;
        pieces(|all| all.insert(address));
        call.reply_freed(address, GROUP, true);
    }
    done(call)
}

pub unsafe fn give(call: &mut Call) -> Result<(), Reject> {
    let address = call.frees(&[GROUP])?;
    assert!(pieces(|all| all.remove(&address)), "a piece that is lent");
    call.end_freeing(true);
    done(call)
}

/// Memory of an object that the application uses.
pub unsafe fn place(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(0)?;
    let mut places = PLACES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let at = *places.get_or_insert_default().entry(native).or_insert_with(|| Box::leak(Box::new([0; PLACE_BYTES])));
    drop(places);
    call.reply_resident(at.as_ptr().expose_provenance(), PLACE_BYTES, 0, native);
    done(call)
}

impl Side {
    fn lend(&self, object: u64) -> Vec<u64> {
        self.words_of(0, LEND, |e| e.word(object)).expect("a call that succeeds")
    }

    fn give(&self, piece: u64) -> bool {
        self.call_on(0, GIVE, |e| e.word(piece)).is_some()
    }

    fn place(&self, object: u64) -> u64 {
        let words = self.words_of(0, PLACE, |e| e.word(object)).expect("a call that succeeds");
        assert_eq!((words[0], words[2]), (resident::ELSEWHERE, PLACE_BYTES as u64));
        words[1]
    }
}

#[test]
fn memory_that_the_application_frees_is_lent_again() {
    let old = Side::new();
    let object = old.create(&[1]);
    let [first, second] = old.lend(object)[..] else { panic!("two pieces") };
    let later = old.lend(object);
    assert!(old.give(first));
    old.call(DESTROY, |e| e.word(object));
    let (new, _) = old.moved();
    let (newer, _) = new.moved();
    assert_eq!(lent_by(&newer), 3, "one of four was given back");
    assert!(!newer.give(first) && !newer.give(99), "as in the old process");
    let other = newer.create(&[2]);
    assert!(newer.lend(other).iter().all(|piece| *piece > later[1]), "numbers are not used again");
    newer.call(DESTROY, |e| e.word(other));
    for piece in [second, later[0], later[1], later[1] + 1, later[1] + 2] {
        assert!(newer.give(piece) && !newer.give(piece));
    }
    assert_eq!((lent_by(&newer), newer.session.objects.log.size().records), (0, 0), "nothing is left");
}

#[test]
fn memory_of_objects_keeps_its_number() {
    let old = Side::new();
    let (object, other) = (old.create(&[1]), old.create(&[2]));
    let number = old.place(object);
    let (new, _) = old.moved();
    let (newer, _) = new.moved();
    assert_eq!(newer.place(object), number);
    assert_ne!(newer.place(other), number);
    [object, other].iter().for_each(|id| _ = newer.call(DESTROY, |e| e.word(*id)));
    assert!(newer.session.tables.foreign.counts() == [0; 3]);
    assert_eq!(newer.session.objects.log.size().records, 0);
}

/// A random program that knows what is lent, where objects have their memory, and what must be refused.
#[test]
fn random_programs_find_their_memory_after_moves() {
    for seed in 1..=24u64 {
        let mut random = seed;
        let mut pick = |below: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % below
        };
        let mut side = Side::new();
        let (mut objects, mut lent, mut gone) = (Vec::<(u64, Option<u64>)>::new(), Vec::new(), Vec::new());
        for step in 0..160 {
            match pick(9) {
                0 | 1 => objects.push((side.create(&[step]), None)),
                2 | 3 if !objects.is_empty() => {
                    let (object, _) = objects[pick(objects.len())];
                    let pieces = side.lend(object);
                    // After a move numbers above all live ones begin anew.
                    gone.retain(|piece| !pieces.contains(piece));
                    lent.extend(pieces);
                }
                4 | 5 if !lent.is_empty() => {
                    let piece = lent.swap_remove(pick(lent.len()));
                    assert!(side.give(piece), "seed {seed}, step {step}");
                    gone.push(piece);
                }
                6 if !objects.is_empty() => {
                    let at = pick(objects.len());
                    let (object, known) = &mut objects[at];
                    let number = side.place(*object);
                    assert_eq!(*known.get_or_insert(number), number, "seed {seed}, step {step}");
                }
                7 if !objects.is_empty() => {
                    let (object, _) = objects.swap_remove(pick(objects.len()));
                    side.call(DESTROY, |e| e.word(object));
                }
                8 => side = side.moved().0,
                _ => {}
            }
        }
        assert_eq!(lent_by(&side), lent.len(), "seed {seed}");
        assert!(gone.into_iter().all(|piece| !side.give(piece)), "seed {seed}");
        assert!(lent.into_iter().all(|piece| side.give(piece)), "seed {seed}");
        objects.iter().for_each(|(id, _)| _ = side.call(DESTROY, |e| e.word(*id)));
        assert_eq!(
            (side.session.objects.log.size().records, side.session.tables.foreign.counts() == [0; 3]),
            (0, true),
            "seed {seed}"
        );
    }
}
