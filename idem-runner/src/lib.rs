//! Runs operations under idempotency keys: claim, renew, settle, replay.
