//! What a check takes note of beside passing or failing.

use std::{
    io::Write,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Shared by the clones of a harness.
#[derive(Debug, Default)]
pub(crate) struct Notes(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    backend: Option<String>,
    seed: Option<u64>,
    not_claimed: Option<String>,
    /// Whether nothing is printed, since a report says it.
    is_quiet: bool,
}

impl Notes {
    pub(crate) fn note_backend(&self, backend: &str) {
        self.noted().backend.get_or_insert_with(|| backend.to_owned());
    }

    /// Takes note of the seed that a check plays: where it fails, the last is the one that it failed with.
    pub(crate) fn note_seed(&self, seed: u64) {
        self.noted().seed = Some(seed);
    }

    /// Says that a check does not apply, since the harness does not declare what it is about.
    pub(crate) fn note_not_claimed(&self, check: &str, capability: &str, declare: &str) {
        self.note_unchecked(capability, format!("{check}; declared by Harness::{declare}"));
    }

    /// Says that a check has not seen what it is about, which the contract does not ask of every store.
    pub(crate) fn note_not_seen(&self, check: &str, what: &str) {
        self.note_unchecked(what, check.to_owned());
    }

    /// Past the capture of test output: a test that passed without checking anything must not look like one that did.
    fn note_unchecked(&self, capability: &str, why: String) {
        {
            let mut noted = self.noted();
            let before = noted.not_claimed.take();
            noted.not_claimed = Some(before.map_or(capability.to_owned(), |other| format!("{other}, {capability}")));
        }
        if self.noted().is_quiet {
            return;
        }
        let line = format!("not claimed: {capability} ({why})\n");
        // Whether anybody can read it does not matter to the check.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }

    /// Prints nothing from now on.
    pub(crate) fn be_quiet(&self) {
        self.noted().is_quiet = true;
    }

    pub(crate) fn backend(&self) -> Option<String> {
        self.noted().backend.clone()
    }

    pub(crate) fn seed(&self) -> Option<u64> {
        self.noted().seed
    }

    pub(crate) fn not_claimed(&self) -> Option<String> {
        self.noted().not_claimed.clone()
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
