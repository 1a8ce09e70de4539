//! A right store, made so that one rule at a time can be broken.

// Each test file uses its own part of this.
#![allow(dead_code)]

mod reference;
mod rules;

pub(crate) use reference::Reference;
pub(crate) use rules::{Right, Rules};
