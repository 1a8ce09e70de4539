//! The conformance suite of idem: what a store must do, as tests that a store crate runs in five lines.
