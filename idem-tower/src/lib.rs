//! Idempotency-Key as a tower layer, for axum and hyper.
