//! The choices that a service makes once.

use std::time::Duration;

/// How an attempt ends in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settle {
    /// The response is recorded and replayed from then on.
    Complete,
    /// The next attempt may start at once and is a repeat. Under [`OnLapse::Hold`](idem_core::OnLapse::Hold) the
    /// outcome is held instead, until someone resolves it.
    Release,
    /// The next attempt may start at once, with another request if nothing was done before: for outcomes that say that
    /// the request was refused before it had any effect.
    Forget,
}

/// Which status settles how.
///
/// | outcome | default |
/// |---|---|
/// | the request was refused: 400 401 403 405 406 411 413 414 415 417 422 431 | forget |
/// | passing: 5xx, 408, 425, 429 | release |
/// | every other status | complete |
///
/// An operation that fails or panics gives no status and is released (held, under hold).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettlePolicy {
    keep_everything: bool,
    exceptions: Vec<(u16, Settle)>,
}

impl SettlePolicy {
    /// Every response is final, whatever its status.
    pub fn keep_everything() -> Self {
        Self { keep_everything: true, exceptions: Vec::new() }
    }

    /// The same, but this status settles like this. The last word on a status counts.
    #[must_use]
    pub fn with(mut self, status: u16, settle: Settle) -> Self {
        self.exceptions.push((status, settle));
        self
    }

    /// How a response with this status settles.
    pub fn of(&self, status: u16) -> Settle {
        if let Some((_, settle)) = self.exceptions.iter().rev().find(|(exception, _)| *exception == status) {
            return *settle;
        }
        match status {
            _ if self.keep_everything => Settle::Complete,
            400 | 401 | 403 | 405 | 406 | 411 | 413 | 414 | 415 | 417 | 422 | 431 => Settle::Forget,
            408 | 425 | 429 | 500..=599 => Settle::Release,
            _ => Settle::Complete,
        }
    }
}

/// What a request gets while another attempt runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// [`Outcome::Conflict`](crate::Outcome::Conflict), at once.
    #[default]
    Refuse,
    /// The answer of that attempt, if it settles in time; else Conflict. Those who wait for one attempt cost the store
    /// one wait together, and [`Builder::max_waiters`](crate::Builder::max_waiters) bounds how many there are. If that
    /// attempt gives the key back or lapses, one of them runs the operation.
    Wait {
        /// The longest wait. More than zero.
        at_most: Duration,
    },
}

/// What a request gets when its claim can't be made because the store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// The error; nothing runs.
    #[default]
    Refuse,
    /// The operation runs without any protection: **a retry runs it again**. Counted in
    /// [`Counters::unprotected`](crate::Counters::unprotected). A request that has [waited](OnConflict::Wait) gets the error
    /// all the same, since another attempt is known to be at it.
    RunUnprotected,
}

/// Whether expired records are removed in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// This often, in batches. More than zero.
    Every(Duration),
    /// Never: something else calls [`Store::sweep`](idem_core::Store::sweep), or the store needs no help.
    Off,
}

impl Default for Sweep {
    /// Every minute.
    fn default() -> Self {
        Self::Every(Duration::from_secs(60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // cases 100, 101
    #[test]
    fn refusals_are_forgotten_passing_failures_released_and_everything_else_is_final() {
        let policy = SettlePolicy::default();
        for status in 100..=999 {
            let expected = match status {
                400 | 401 | 403 | 405 | 406 | 411 | 413 | 414 | 415 | 417 | 422 | 431 => Settle::Forget,
                408 | 425 | 429 => Settle::Release,
                status if status / 100 == 5 => Settle::Release,
                _ => Settle::Complete,
            };
            assert_eq!(policy.of(status), expected, "{status}");
        }
    }

    // case 102
    #[test]
    fn the_preset_keeps_everything_but_its_exceptions() {
        let policy = SettlePolicy::keep_everything().with(503, Settle::Forget).with(503, Settle::Release);
        assert_eq!(policy.of(403), Settle::Complete);
        assert_eq!(policy.of(500), Settle::Complete);
        assert_eq!(policy.of(503), Settle::Release, "the last word on a status counts");
    }
}
