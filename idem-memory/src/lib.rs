//! The in-memory store of idem: the state machine under sharded locks.
