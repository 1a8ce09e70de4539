//! A right store, made so that one rule at a time can be broken.

// Each test file uses its own part of this.
#![allow(dead_code, unused_imports)]
// A lock of a test that is poisoned has a failed test behind it.
#![allow(clippy::unwrap_used)]

mod file;
mod reference;
mod rules;
mod transactions;

pub(crate) use file::{FileStore, RightWays, Ways};
pub(crate) use reference::Reference;
pub(crate) use rules::{Gap, Marks, Right, Rules, Slot, apply, right_claim};
pub(crate) use transactions::{Hook, Repeating, Unfenced};
