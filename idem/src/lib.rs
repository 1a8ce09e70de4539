//! Idempotency keys for Rust services: one effect and one answer per key.
