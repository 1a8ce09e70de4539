//! The pure core of idem.
