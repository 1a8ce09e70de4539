//! The scripts, for what native commands can't do.
//!
//! Each touches one declared key, looks before it writes, and writes once, last. None knows the rules of a claim: what
//! is written over a value was decided by the machine from that value, and is written only while it is still there.

use fred::types::scripts::Script;

/// The scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) look: Script,
    pub(crate) swap: Script,
    pub(crate) complete: Script,
    pub(crate) renew: Script,
    pub(crate) remove: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let script = |body: &str| Script::from_lua(format!("{}\n{body}", include_str!("scripts/prelude.lua")));
        Self {
            look: script(include_str!("scripts/look.lua")),
            swap: script(include_str!("scripts/swap.lua")),
            complete: script(include_str!("scripts/complete.lua")),
            renew: script(include_str!("scripts/renew.lua")),
            remove: script(include_str!("scripts/remove.lua")),
        }
    }
}
