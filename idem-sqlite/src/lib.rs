//! The SQLite store of idem: durable, grouped, and in the caller's transaction.
