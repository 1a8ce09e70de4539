//! A payments service that a client can retry against.

fn main() {}
