//! The store's clock.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use idem_core::{ManualClock, Timestamp};

/// What was learned this long ago is learned again: clocks drift, are set, and hosts fall asleep.
const OLD: Duration = Duration::from_secs(10 * 60);

/// How long one caller has for learning it again, before another is told to.
const PAUSE: Duration = Duration::from_secs(10);

/// The server's clock, or in tests one that is moved by hand.
///
/// What is judged is always a difference of the server's own clock. Where the client has to put an instant into words
/// without asking the server (the first claim is a single native command), it says what the server's clock shows as near
/// as it can tell, and never a later instant: from then on that record's instants count from there.
#[derive(Debug)]
pub(crate) enum Clock {
    Server { known: Mutex<Known> },
    Manual(ManualClock),
}

/// What is known of the server's clock. Told from a clock of the host's that nobody sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// When the host's clock began.
    began: Instant,
    /// How many milliseconds the server's clock is ahead of it, at least.
    ahead: i64,
    /// When it was learned anew last. None before the first look at the server's clock.
    learned: Option<Instant>,
    /// When somebody was told last to learn it again.
    told: Option<Instant>,
}

impl Clock {
    pub(crate) fn server() -> Self {
        Self::Server {
            known: Mutex::new(Known { began: Instant::now(), ahead: host_shows(), learned: None, told: None }),
        }
    }

    /// Learns what the server's clock showed at some instant before now: it shows at least that, so of several looks the
    /// one that it tells most by is the best.
    pub(crate) fn learn(&self, showed: Timestamp) {
        self.learn_at(showed, Instant::now());
    }

    fn learn_at(&self, showed: Timestamp, answered: Instant) {
        let Self::Server { known } = self else { return };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        // Rounded so that it never comes to more than the server's.
        let since = millis(answered.duration_since(known.began)).saturating_add(1);
        let ahead = showed.as_millis().saturating_sub(since);
        if known.is_old(answered) {
            (known.ahead, known.learned) = (ahead, Some(answered));
        } else {
            known.ahead = known.ahead.max(ahead);
        }
    }

    /// Whether anything has been learned.
    pub(crate) fn is_known(&self) -> bool {
        self.known().is_none_or(|known| known.learned.is_some())
    }

    /// Whether it is time to learn it again: told to one caller now and then, until it is learned.
    pub(crate) fn should_look_again(&self) -> bool {
        self.should_look_again_at(Instant::now())
    }

    fn should_look_again_at(&self, now: Instant) -> bool {
        let Self::Server { known } = self else { return false };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let should = known.is_old(now) && known.told.is_none_or(|told| now.saturating_duration_since(told) > PAUSE);
        if should {
            known.told = Some(now);
        }
        should
    }

    /// What it shows, as near as can be told without asking.
    pub(crate) fn shows(&self) -> Timestamp {
        match self {
            Self::Server { known } => known.lock().unwrap_or_else(PoisonError::into_inner).shows_at(Instant::now()),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// What every script takes instead of the server's clock: nothing, unless it is moved by hand.
    pub(crate) fn set_to(&self) -> Option<Timestamp> {
        match self {
            Self::Server { .. } => None,
            Self::Manual(clock) => Some(clock.now()),
        }
    }

    fn known(&self) -> Option<Known> {
        match self {
            Self::Server { known } => Some(*known.lock().unwrap_or_else(PoisonError::into_inner)),
            Self::Manual(_) => None,
        }
    }
}

impl Known {
    fn is_old(&self, now: Instant) -> bool {
        self.learned.is_none_or(|learned| now.saturating_duration_since(learned) > OLD)
    }

    fn shows_at(&self, now: Instant) -> Timestamp {
        Timestamp::from_millis(millis(now.saturating_duration_since(self.began)).saturating_add(self.ahead))
    }
}

fn host_shows() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => millis(since),
        Err(before) => millis(before.duration()).saturating_neg(),
    }
}

fn millis(since: Duration) -> i64 {
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWED: i64 = 1_000_000;

    fn at(clock: &Clock, instant: Instant) -> i64 {
        clock.known().unwrap().shows_at(instant).as_millis()
    }

    #[test]
    fn what_it_shows_is_never_later_than_the_servers_clock_and_the_fastest_answer_tells_it_best() {
        let clock = Clock::server();
        assert!(!clock.is_known());
        let zero = clock.known().unwrap().began;
        let after = |millis| zero + Duration::from_millis(millis);
        // The server's clock shows SHOWED + n at the instant n, each time. What differs is when the answer came.
        for (answered, off_by_at_most) in [(100, 101), (130, 101), (5, 6), (400, 6)] {
            let showed = if answered == 130 { SHOWED + 20 } else { SHOWED };
            clock.learn_at(Timestamp::from_millis(showed), after(answered));
            assert!(clock.is_known());
            let off_by = SHOWED + 1_000 - at(&clock, after(1_000));
            assert!((0..=off_by_at_most).contains(&off_by), "{off_by} after the answer at {answered}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed_once_what_is_known_is_old() {
        let clock = Clock::server();
        let zero = clock.known().unwrap().began;
        clock.learn_at(Timestamp::from_millis(SHOWED), zero);
        let later = zero + OLD / 2;
        clock.learn_at(Timestamp::from_millis(0), later);
        assert!(at(&clock, later) >= SHOWED, "one look that was slow to come counts for nothing");
        let later = zero + OLD + Duration::from_millis(1);
        clock.learn_at(Timestamp::from_millis(0), later);
        assert!((-1..=0).contains(&at(&clock, later)));
        assert!(!clock.known().unwrap().is_old(later + OLD));
    }

    #[test]
    fn one_caller_at_a_time_is_told_to_look_again_once_what_is_known_is_old() {
        let clock = Clock::server();
        let learned = clock.known().unwrap().began;
        clock.learn_at(Timestamp::from_millis(SHOWED), learned);
        assert!(!clock.should_look_again_at(learned + OLD));
        let later = learned + OLD + Duration::from_millis(1);
        assert!(clock.should_look_again_at(later) && !clock.should_look_again_at(later));
        let later = later + PAUSE + Duration::from_millis(1);
        assert!(clock.should_look_again_at(later), "whoever was told did not do it");
        clock.learn_at(Timestamp::from_millis(SHOWED), later);
        assert!(!clock.should_look_again_at(later + PAUSE + PAUSE));
    }

    #[test]
    fn a_clock_that_is_moved_by_hand_learns_nothing() {
        let manual = ManualClock::starting_at(Timestamp::from_millis(7));
        let clock = Clock::Manual(manual);
        clock.learn(Timestamp::from_millis(1_000_000));
        assert_eq!(clock.shows(), Timestamp::from_millis(7));
        assert!(clock.is_known() && !clock.should_look_again());
    }
}
