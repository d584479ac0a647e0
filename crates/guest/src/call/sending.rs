//! The ways of a finished request to the server.

use std::rc::Rc;

use aviary_wire::kind;

use super::Call;
use crate::connection::Connection;
use crate::descriptor::Lost;
use crate::lane::ThreadLane;
use crate::lane::frame::{End, Frame};
use crate::reply::{Reply, forget_callbacks};

impl Call {
    /// Sends the call and waits for its reply.
    #[inline]
    pub fn send(self) -> Result<Reply, Lost> {
        let (function, refused) = (self.function, self.refused);
        let (lane, mut frame) = self.into_parts();
        if refused {
            return refused_reply(lane, frame);
        }
        let answer = match lane.exchange(kind::CALL, 0, function, &mut frame) {
            Ok(answer) => answer,
            Err(Lost) => return Err(lost(&lane, &mut frame)),
        };
        Reply::new(lane, frame, answer)
    }

    /// Sends the call without waiting. With `AVIARY_SYNC=1` it waits: the value is the call's own
    /// error.
    #[inline]
    pub fn send_async(self) -> Result<Option<i64>, Lost> {
        let (function, refused) = (self.function, self.refused);
        let (lane, mut frame) = self.into_parts();
        if refused {
            drop(Reply::refused(lane, frame));
            return Err(Lost);
        }
        if !frame.ends.is_empty() {
            end_mappings(lane.connection, &mut frame);
            if !frame.once.is_empty() {
                return post_registering(lane, function, frame);
            }
        }
        post(lane, function, frame)
    }

    /// Sends the call as [`Call::send`] does, unless [`Reply::remember`] kept a reply to an equal
    /// request, which is used instead.
    pub fn send_cached(mut self) -> Result<Reply, Lost> {
        self.make_key();
        self.send_keyed()
    }

    fn send_keyed(mut self) -> Result<Reply, Lost> {
        let connection = self.lane.connection;
        if let Some(answer) = connection.objects.cache.get(&self.frame().key) {
            let (lane, frame) = self.into_parts();
            return Ok(Reply::cached(lane, frame, &answer));
        }
        self.send()
    }

    /// The same, where the number and this handle stand for all arguments: the answer is forgotten with the handle.
    /// Where there is no such handle the arguments count.
    pub fn send_cached_as(mut self, number: u64, ty: u32, value: u64) -> Result<Reply, Lost> {
        let handles = &self.lane.connection.handles;
        if value == 0 || !handles.is_handle_of(ty, value) {
            return self.send_cached();
        }
        let word = handles.word_of(ty, value);
        let function = self.function;
        let frame = self.frame();
        frame.key.clear();
        frame.key.extend_from_slice(&function.to_le_bytes());
        frame.key.extend([number, word].iter().flat_map(|word| word.to_le_bytes()));
        frame.handles.clear();
        frame.handles.push(word);
        self.send_keyed()
    }

    /// Makes the cache key: function and fields of the request. The content of an output is among them where the library
    /// may leave a part of it as it is.
    fn make_key(&mut self) {
        let function = self.function;
        let frame = self.frame();
        frame.key.clear();
        frame.key.extend_from_slice(&function.to_le_bytes());
        frame.key.extend_from_slice(frame.encoder.body());
    }
}

/// Ends what an asynchronous call unmaps or frees: the application may not use it; the server still
/// reads the blocks of mappings.
fn end_mappings(connection: &Connection, frame: &mut Frame) {
    for end in frame.ends.drain(..) {
        match end {
            End::Foreign { address, id } => {
                let block = connection.objects.foreign.end(address, id);
                frame.blocks.extend(block.and_then(|block| connection.deliveries.abandon(block)));
            }
            End::Shadow { .. } | End::Callback { .. } => {}
        }
    }
}

/// The reply of a call that was not sent.
#[cold]
fn refused_reply(lane: Rc<ThreadLane>, frame: Box<Frame>) -> Result<Reply, Lost> {
    let lost = lane.connection.peer.liveness.dead();
    let reply = Reply::refused(lane, frame);
    if lost { Err(Lost) } else { Ok(reply) }
}

/// A call that has no reply.
#[cold]
fn lost(lane: &ThreadLane, frame: &mut Frame) -> Lost {
    forget_callbacks(lane.connection, frame);
    Lost
}

/// Sends an asynchronous call.
#[inline(always)]
fn post(lane: Rc<ThreadLane>, function: u32, mut frame: Box<Frame>) -> Result<Option<i64>, Lost> {
    let lent = frame.lent;
    let sent = lane.post(function, &mut frame);
    if lent {
        // The application may reuse its buffer once this function returns.
        lane.finish_posted()?;
    }
    if !matches!(sent, Ok(None)) {
        // The application is told that no object was created.
        frame.minted.drain(..).for_each(|value| lane.connection.release(value, true));
    }
    lane.free_blocks(&mut frame);
    lane.give_frame(frame);
    sent
}

/// Sends an asynchronous call that registers callbacks, which the application waits for if the call is sent.
#[cold]
fn post_registering(lane: Rc<ThreadLane>, function: u32, mut frame: Box<Frame>) -> Result<Option<i64>, Lost> {
    let (connection, ids) = (lane.connection, std::mem::take(&mut frame.once));
    let sent = post(lane, function, frame);
    for id in ids {
        match sent {
            Ok(None) => connection.callbacks.confirm(id),
            _ => connection.forget_callback(id),
        }
    }
    sent
}
