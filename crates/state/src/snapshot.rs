//! The format of a snapshot: a sequence of frames, of which the last has the hash of all others.
//!
//! Everything that a rebuild needs at once comes first; the explicit state of objects, which may be as large as a
//! device's memory, follows in chunks and is never in memory as a whole.

use std::io::{Read, Write};

use crate::codec::{FormatError, Get, Put};
use crate::content::Content;
use crate::record::{Block, Effect, Owner, Record};
use crate::store::Store;

/// First bytes; the last one is the version of the format.
const MAGIC: &[u8; 8] = b"aviarys\x03";

/// Bytes of a frame's content. Bounds the memory that a hostile snapshot makes its reader spend for one frame.
const MAX_FRAME_BYTES: usize = 1 << 20;
/// Bytes of explicit state, or of a stored content, in one frame.
const CHUNK_BYTES: usize = 512 << 10;
/// Bytes that all stored contents and records of a snapshot may have: more than any log may keep.
const MAX_HEAD_BYTES: usize = 4 << 30;

mod kind {
    /// A piece of the head, see [`super::Snapshot`].
    pub const HEAD: u8 = 1;
    /// A piece of a content of the store.
    pub const CONTENT: u8 = 2;
    /// A piece of an object's explicit state.
    pub const STATE: u8 = 3;
    pub const END: u8 = 4;
}

/// The API that a snapshot belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    pub api: String,
    pub spec_hash: u64,
}

/// The place of ids that one object has at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub index: u32,
    /// Of the object that is here, or else of the next one; for an index that the guest chose, of the last one.
    pub generation: u32,
}

/// An amount that is charged to the session's tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Its number in the API.
    pub resource: u32,
    /// Devices that it lies on; none: it lies on no device.
    pub devices: Vec<String>,
    pub amount: u64,
}

/// A live object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectImage {
    pub id: u64,
    /// References that the guest owns.
    pub references: u64,
    /// Known from a query: it is nobody's.
    pub borrowed: bool,
    /// Objects that it ends with.
    pub ends_with: Vec<u64>,
    /// The name by which another process finds it, if the specification says one.
    pub identity: Option<String>,
    pub holdings: Vec<Holding>,
}

/// All of a snapshot but the explicit state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    pub identity: Identity,
    /// Those of ids that the server chose, by index and without gaps.
    pub slots: Vec<Slot>,
    /// The free ones of them, in the order in which they will be used.
    pub free: Vec<u32>,
    /// Those of ids that the guest chose, as far as they were used.
    pub guest_slots: Vec<Slot>,
    pub objects: Vec<ObjectImage>,
    /// In the order of execution.
    pub records: Vec<Record>,
    /// Charges that no object holds.
    pub unbound: Vec<Holding>,
    /// Charges that the specification's server code returns, by the number that it knows them by.
    pub kept: Vec<(u64, Vec<Holding>)>,
    /// Handles that the tenant is charged for, which it is in steps.
    pub handles: u64,
    /// Bytes of the object log for which the tenant is charged.
    pub log: u64,
}

/// A piece of an object's explicit state, or of the session's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChunk {
    /// 0: the session's.
    pub id: u64,
    /// Within the object's state, in bytes.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// Writes a snapshot: first the head, then explicit state, then the end.
pub struct SnapshotWriter<'a> {
    into: &'a mut dyn Write,
    hash: blake3::Hasher,
}

impl<'a> SnapshotWriter<'a> {
    /// `store` has the contents that the records name.
    pub fn begin(into: &'a mut dyn Write, head: &Snapshot, store: &Store) -> Result<SnapshotWriter<'a>, FormatError> {
        let mut writer = SnapshotWriter { into, hash: blake3::Hasher::new() };
        writer.raw(MAGIC)?;
        for (hash, bytes) in store.iter() {
            for (number, piece) in bytes.chunks(CHUNK_BYTES).enumerate() {
                let mut put = Put::default();
                put.bytes.extend_from_slice(hash);
                put.word((number * CHUNK_BYTES) as u64);
                put.word(bytes.len() as u64);
                put.data(piece);
                writer.frame(kind::CONTENT, &put.bytes)?;
            }
        }
        let mut put = Put::default();
        head.put(&mut put);
        let pieces = put.bytes.chunks(CHUNK_BYTES).count() as u64;
        for (number, piece) in put.bytes.chunks(CHUNK_BYTES).enumerate() {
            let mut frame = Put::default();
            frame.word(pieces - 1 - number as u64);
            frame.data(piece);
            writer.frame(kind::HEAD, &frame.bytes)?;
        }
        Ok(writer)
    }

    /// The next piece of an object's state, of at most [`SnapshotWriter::CHUNK`] bytes.
    pub fn state(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(), FormatError> {
        let mut put = Put::default();
        put.word(id);
        put.word(offset);
        put.data(bytes);
        self.frame(kind::STATE, &put.bytes)
    }

    pub const CHUNK: usize = CHUNK_BYTES;

    pub fn end(mut self) -> Result<(), FormatError> {
        let hash = *self.hash.finalize().as_bytes();
        self.frame(kind::END, &hash)?;
        Ok(self.into.flush()?)
    }

    fn frame(&mut self, kind: u8, content: &[u8]) -> Result<(), FormatError> {
        let mut head = [0; 9];
        head[0] = kind;
        head[1..].copy_from_slice(&(content.len() as u64).to_le_bytes());
        self.raw(&head)?;
        self.raw(content)
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.hash.update(bytes);
        Ok(self.into.write_all(bytes)?)
    }
}

/// Reads a snapshot in the order in which it was written.
pub struct SnapshotReader<'a> {
    from: &'a mut dyn Read,
    hash: blake3::Hasher,
}

impl<'a> SnapshotReader<'a> {
    /// Reads everything in front of the explicit state.
    pub fn begin(from: &'a mut dyn Read) -> Result<(SnapshotReader<'a>, Snapshot, Store), FormatError> {
        let mut reader = SnapshotReader { from, hash: blake3::Hasher::new() };
        let mut magic = [0; MAGIC.len()];
        reader.raw(&mut magic)?;
        if &magic != MAGIC {
            return Err(FormatError::Magic);
        }
        let mut store = Store::default();
        let (mut head, mut content) = (Vec::new(), PartialContent::default());
        loop {
            let (kind, bytes) = reader.frame()?;
            let mut get = Get::new(&bytes);
            match kind {
                kind::CONTENT => content.add(&mut get, &mut store)?,
                kind::HEAD => {
                    let left = get.word()?;
                    head.extend_from_slice(get.data()?);
                    get.finish("the rest of a frame")?;
                    if head.len() > MAX_HEAD_BYTES {
                        return Err(FormatError::Value { what: "the size", value: head.len() as u64 });
                    }
                    if left == 0 {
                        break;
                    }
                }
                other => return Err(FormatError::Value { what: "the kind of a frame", value: other.into() }),
            }
        }
        content.finish()?;
        let snapshot = Snapshot::get(&mut Get::new(&head))?;
        let known = |content: &Content| store.bytes_of(content).is_some();
        let complete = snapshot.records.iter().flat_map(Record::contents).all(known);
        if complete { Ok((reader, snapshot, store)) } else { Err(FormatError::Content) }
    }

    /// The next piece of explicit state; `None` at the end, and the snapshot is as it was written.
    pub fn state(&mut self) -> Result<Option<StateChunk>, FormatError> {
        let before = *self.hash.clone().finalize().as_bytes();
        let (kind, bytes) = self.frame()?;
        let mut get = Get::new(&bytes);
        match kind {
            kind::STATE => {
                let (id, offset) = (get.word()?, get.word()?);
                let bytes = get.data()?.to_vec();
                get.finish("the rest of a frame")?;
                Ok(Some(StateChunk { id, offset, bytes }))
            }
            kind::END if get.hash()? == before => Ok(None),
            kind::END => Err(FormatError::Hash),
            other => Err(FormatError::Value { what: "the kind of a frame", value: other.into() }),
        }
    }

    fn frame(&mut self) -> Result<(u8, Vec<u8>), FormatError> {
        let mut head = [0; 9];
        self.raw(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u64::from_le_bytes(length);
        if length > MAX_FRAME_BYTES as u64 {
            return Err(FormatError::Value { what: "the length of a frame", value: length });
        }
        let mut bytes = vec![0; length as usize];
        self.raw(&mut bytes)?;
        Ok((kind, bytes))
    }

    fn raw(&mut self, bytes: &mut [u8]) -> Result<(), FormatError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => FormatError::Short,
            _ => FormatError::Read(error),
        })?;
        self.hash.update(bytes);
        Ok(())
    }
}

/// A content of the store, of which pieces have come.
#[derive(Default)]
struct PartialContent {
    hash: [u8; 32],
    bytes: Vec<u8>,
    total: u64,
}

impl PartialContent {
    fn add(&mut self, get: &mut Get, store: &mut Store) -> Result<(), FormatError> {
        let (hash, offset, total) = (get.hash()?, get.word()?, get.word()?);
        let piece = get.data()?;
        get.finish("the rest of a frame")?;
        if self.bytes.is_empty() {
            (self.hash, self.total) = (hash, total);
        }
        let end = offset.saturating_add(piece.len() as u64);
        let fits = self.hash == hash && self.total == total && offset == self.bytes.len() as u64 && end <= total;
        if !fits || piece.is_empty() || store.bytes().saturating_add(end as usize) > MAX_HEAD_BYTES {
            return Err(FormatError::Value { what: "the offset of a content", value: offset });
        }
        self.bytes.extend_from_slice(piece);
        if end == total {
            let bytes = std::mem::take(&mut self.bytes);
            // Its name is what it says it is, and long enough to be in the store.
            if store.add(&bytes) != Content::Stored(hash) {
                return Err(FormatError::Content);
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), FormatError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(FormatError::Short) }
    }
}

impl Snapshot {
    fn put(&self, put: &mut Put) {
        put.data(self.identity.api.as_bytes());
        put.word(self.identity.spec_hash);
        put.list(&self.slots, put_slot);
        put.list(&self.free, |put, index| put.word((*index).into()));
        put.list(&self.guest_slots, put_slot);
        put.list(&self.objects, put_object);
        put.list(&self.records, put_record);
        put.list(&self.unbound, put_holding);
        put.list(&self.kept, |put, (number, holdings)| {
            put.word(*number);
            put.list(holdings, put_holding);
        });
        put.word(self.handles);
        put.word(self.log);
    }

    fn get(get: &mut Get) -> Result<Snapshot, FormatError> {
        let snapshot = Snapshot {
            identity: Identity { api: get.text("the API's name")?, spec_hash: get.word()? },
            slots: get.list(get_slot)?,
            free: get.list(|get| get.number("an index"))?,
            guest_slots: get.list(get_slot)?,
            objects: get.list(get_object)?,
            records: get.list(get_record)?,
            unbound: get.list(get_holding)?,
            kept: get.list(|get| Ok((get.word()?, get.list(get_holding)?)))?,
            handles: get.word()?,
            log: get.word()?,
        };
        get.finish("the rest of the head")?;
        Ok(snapshot)
    }
}

fn put_slot(put: &mut Put, slot: &Slot) {
    put.word(slot.index.into());
    put.word(slot.generation.into());
}

fn get_slot(get: &mut Get) -> Result<Slot, FormatError> {
    Ok(Slot { index: get.number("an index")?, generation: get.number("a generation")? })
}

fn put_holding(put: &mut Put, holding: &Holding) {
    put.word(holding.resource.into());
    put.list(&holding.devices, |put, name| put.data(name.as_bytes()));
    put.word(holding.amount);
}

fn get_holding(get: &mut Get) -> Result<Holding, FormatError> {
    Ok(Holding {
        resource: get.number("a resource")?,
        devices: get.list(|get| get.text("a device's name"))?,
        amount: get.word()?,
    })
}

fn put_object(put: &mut Put, object: &ObjectImage) {
    put.word(object.id);
    put.word(object.references);
    put.byte(object.borrowed.into());
    put.words(&object.ends_with);
    put.byte(object.identity.is_some().into());
    object.identity.iter().for_each(|name| put.data(name.as_bytes()));
    put.list(&object.holdings, put_holding);
}

fn get_object(get: &mut Get) -> Result<ObjectImage, FormatError> {
    Ok(ObjectImage {
        id: get.word()?,
        references: get.word()?,
        borrowed: get.flag("an object")?,
        ends_with: get.words()?,
        identity: get.flag("an identity")?.then(|| get.text("an identity")).transpose()?,
        holdings: get.list(get_holding)?,
    })
}

const EFFECTS: [Effect; 5] = [Effect::Makes, Effect::Changes, Effect::Retains, Effect::GivesBack, Effect::Ends];

fn put_record(put: &mut Put, record: &Record) {
    put.word(record.function.into());
    put.byte(EFFECTS.iter().position(|effect| *effect == record.effect).unwrap_or_default() as u8);
    put.list(&record.owners, put_owner);
    put.words(&record.key);
    put.words(&record.inputs);
    put.word(record.current);
    put.words(&record.outputs);
    put_content(put, &record.request);
    put.list(&record.blocks, |put, block| {
        put.word(block.offset);
        put_content(put, &block.content);
    });
    put.words(&record.same);
    put.words(&record.callbacks);
}

fn get_record(get: &mut Get) -> Result<Record, FormatError> {
    let function = get.number("a function")?;
    let effect = get.byte()?;
    let unknown = FormatError::Value { what: "the effect of a call", value: effect.into() };
    Ok(Record {
        function,
        effect: *EFFECTS.get(usize::from(effect)).ok_or(unknown)?,
        owners: get.list(get_owner)?,
        key: get.words()?,
        inputs: get.words()?,
        current: get.word()?,
        outputs: get.words()?,
        request: get_content(get)?,
        blocks: get.list(|get| Ok(Block { offset: get.word()?, content: get_content(get)? }))?,
        same: get.words()?,
        callbacks: get.words()?,
    })
}

fn put_owner(put: &mut Put, owner: &Owner) {
    let (kind, value) = match owner {
        Owner::Object(id) => (0, *id),
        Owner::Session => (1, 0),
        Owner::Thread(lane) => (2, (*lane).into()),
    };
    put.byte(kind);
    put.word(value);
}

fn get_owner(get: &mut Get) -> Result<Owner, FormatError> {
    match get.byte()? {
        0 => Ok(Owner::Object(get.word()?)),
        1 => get.word().map(|_| Owner::Session),
        2 => Ok(Owner::Thread(get.number("a lane")?)),
        kind => Err(FormatError::Value { what: "the owner of a call", value: kind.into() }),
    }
}

fn put_content(put: &mut Put, content: &Content) {
    match content {
        Content::Inline(bytes) => {
            put.byte(0);
            put.data(bytes);
        }
        Content::Stored(hash) => {
            put.byte(1);
            put.bytes.extend_from_slice(hash);
        }
    }
}

fn get_content(get: &mut Get) -> Result<Content, FormatError> {
    match get.byte()? {
        0 => Ok(Content::Inline(get.data()?.into())),
        1 => Ok(Content::Stored(get.hash()?)),
        kind => Err(FormatError::Value { what: "a content", value: kind.into() }),
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
