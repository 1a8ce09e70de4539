//! The PostgreSQL store of idem.
