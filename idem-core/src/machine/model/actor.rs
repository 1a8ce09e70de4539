//! What an actor does, and what it sends.

/// Token and number, short: a token is the byte that it is full of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) token: u8,
    pub(super) number: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) phase: Phase,
    /// How many claims and resolves it may still begin.
    pub(super) left: u8,
    /// The token of its next one.
    next_token: u8,
}

#[derive(Clone, Debug)]
pub(super) enum Phase {
    Idle,
    /// It sent this, and does nothing before the answer; or gives up.
    Waiting(Command),
    /// It was told that it owns the record, and has not settled it.
    Running(Run),
}

#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) attempt: Attempt,
    /// In which life of the record.
    pub(super) life: u8,
    /// Until when it was told that its lease lasts.
    pub(super) lease_end: i64,
    pub(super) has_effects: bool,
}

/// What is sent to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Claim { token: u8 },
    Resolve { token: u8, seen: Attempt },
    Write(Write, Attempt),
}

/// What an attempt writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Complete,
    Release,
    Forget,
    Hold,
    Renew,
    Checkpoint,
}

/// A command on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) command: Command,
    pub(super) actor: usize,
    /// The last instant at which it may still be applied.
    pub(super) until: i64,
    /// How often it may still be applied.
    pub(super) times: u8,
}

impl Actor {
    pub(super) fn new(number: usize, begins: u8) -> Self {
        Self { phase: Phase::Idle, left: begins, next_token: 16 * (number as u8 + 1) }
    }

    /// The token of a new claim or resolve.
    pub(super) fn begin(&mut self) -> u8 {
        self.left -= 1;
        self.next_token += 1;
        self.next_token
    }
}

impl Write {
    /// Whether the attempt goes on while it is on its way.
    pub(super) fn lets_run(self) -> bool {
        matches!(self, Self::Renew | Self::Checkpoint)
    }
}
