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

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Vec<(&'static str, String)> {
        let scripts = Scripts::new();
        let Scripts { look, swap, complete, renew, remove } = scripts;
        let named = [("look", look), ("swap", swap), ("complete", complete), ("renew", renew), ("remove", remove)];
        named.into_iter().map(|(name, script)| (name, script.lua().unwrap().to_string())).collect()
    }

    /// The calls of a script, without the function that says that an attempt has ended.
    fn calls(body: &str) -> Vec<&str> {
        body.split("redis.call('").skip(1).map(|rest| rest.split(')').next().unwrap()).collect()
    }

    #[test]
    fn every_script_touches_the_one_key_that_it_declares() {
        for (name, body) in bodies() {
            for call in calls(&body) {
                let is_of_the_key = call.contains("', KEYS[1]") || call == "PUBLISH', ARGV[2], ARGV[3]";
                assert!(is_of_the_key, "{name}: {call}");
            }
            assert!(!body.contains("KEYS[2]") && !body.contains("pcall"), "{name}");
        }
    }

    #[test]
    fn what_a_script_writes_is_the_last_thing_that_it_does() {
        for (name, body) in bodies() {
            let writes: Vec<usize> =
                ["'SET'", "'DEL'"].iter().flat_map(|word| body.match_indices(word)).map(|at| at.0).collect();
            assert_eq!(writes.is_empty(), name == "look");
            for write in writes {
                // Of two writes that follow each other only one is reached.
                let rest = &body[write + 1..];
                let other = rest.replace("redis.call('SET'", "");
                assert!(!other.contains("redis.call"), "{name}: {rest}");
            }
        }
    }

    /// A script that changes is another one: servers of two versions use one Redis at the same time.
    #[test]
    fn two_scripts_never_have_one_digest() {
        let scripts = Scripts::new();
        let digests =
            [&scripts.look, &scripts.swap, &scripts.complete, &scripts.renew, &scripts.remove].map(Script::sha1);
        let different: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(different.len(), digests.len());
    }
}
