//! Who takes packets out of the outbox and sends them: one thread at a time. Part of the outbox's state, under its lock.
//!
//! A lane's thread that has queued a message sends it itself if nobody sends. If somebody does, it leaves the message to that
//! thread, which looks for further ones before it leaves: nobody waits for another thread, and nothing stays behind. The
//! writer sends what no lane's thread may wait for: the rest of a packet that the socket did not take, bulk data, signs, and
//! what lingers. Nothing here depends on the peer.

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// The writer's: when a connection begins, while it sends, and after it has ended.
    #[default]
    Writer,
    /// A lane's thread sends what it has queued.
    Lane,
    /// Nobody sends; the writer waits.
    Free,
}

#[derive(Debug, Default)]
pub struct SendingTurn {
    turn: Holder,
    /// The writer waits for the lane's thread to leave.
    wanted: bool,
    /// The socket took a part of the last packet: the writer sends the rest before anything else.
    rest: bool,
}

impl SendingTurn {
    /// A lane's thread takes the turn. False: somebody has it.
    pub fn lend(&mut self) -> bool {
        let free = self.turn == Holder::Free;
        if free {
            self.turn = Holder::Lane;
        }
        free
    }

    /// The lane's thread leaves. `more`: something is left to send. True: wake the writer.
    pub fn leave(&mut self, more: bool) -> bool {
        self.turn = Holder::Free;
        more | std::mem::take(&mut self.wanted)
    }

    /// The lane's thread leaves because the socket takes no more. The writer, which must be woken, has the turn.
    pub fn leave_rest(&mut self) {
        (self.turn, self.wanted, self.rest) = (Holder::Writer, false, true);
    }

    /// A lane's thread has the turn, and looks for what is queued meanwhile.
    pub fn is_lent(&self) -> bool {
        self.turn == Holder::Lane
    }

    /// The writer takes the turn. False: a lane's thread has it, and wakes the writer when it leaves.
    pub fn take(&mut self) -> bool {
        self.wanted = self.is_lent();
        if !self.wanted {
            self.turn = Holder::Writer;
        }
        !self.wanted
    }

    /// True once after [`SendingTurn::leave_rest`].
    pub fn take_rest(&mut self) -> bool {
        std::mem::take(&mut self.rest)
    }

    /// The writer begins to wait.
    pub fn free(&mut self) {
        self.turn = Holder::Free;
    }

    /// A new connection, on which nothing was sent. No lane's thread has the turn.
    pub fn renew(&mut self) {
        *self = SendingTurn::default();
    }
}
