//! What a check works with: a store at a place of its own, its clock, and claims to make.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use idem_core::{
    Answer, Claim, Fingerprint, Grant, Key, Resolve, Retention, Scope, Store, StoreError, Timestamp, Token,
};

use crate::{Harness, Place, rng};

/// A store at a place, and its clock.
pub(crate) struct World<'a> {
    pub(crate) harness: &'a Harness,
    pub(crate) place: Place,
    /// The first handle; none only while the place is reopened.
    store: Option<Arc<dyn Store>>,
    rng: Mutex<rng::Rng>,
}

impl<'a> World<'a> {
    /// The store at a fresh place.
    pub(crate) async fn new(harness: &'a Harness) -> Self {
        Self::at(harness, Place::new()).await
    }

    /// The store at this place.
    pub(crate) async fn at(harness: &'a Harness, place: Place) -> Self {
        let store = Some(harness.open(&place).await);
        Self { harness, place, store, rng: Mutex::new(rng::Rng::from_seed(rng::fresh_seed())) }
    }

    /// The first handle.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().expect("a world has a handle")
    }

    /// Claims through the first handle.
    pub(crate) async fn ask(&self, claim: &Claim) -> Result<Answer, StoreError> {
        idem_core::claim(&**self.store(), claim).await
    }

    /// Another handle on the same store.
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        self.harness.open(&self.place).await
    }

    /// Drops the first handle and opens the place again. The check must have dropped the others.
    pub(crate) async fn reopen(&mut self) {
        if let Some(store) = self.store.take() {
            assert_eq!(Arc::strong_count(&store), 1, "a check of the suite kept a handle over a restart");
        }
        self.store = Some(self.harness.open(&self.place).await);
    }

    pub(crate) async fn now(&self) -> Timestamp {
        self.harness.now(&self.place).await
    }

    /// Whether instants that the store tells may be others than those of the harness's clock.
    pub(crate) fn has_slack(&self) -> bool {
        !self.harness.slack().is_zero()
    }

    /// The earliest instant that the store may take for now from here on: see [`Harness::resolution`].
    pub(crate) async fn earliest_now(&self) -> Timestamp {
        shifted(self.now().await, self.harness.slack(), -1)
    }

    /// The latest instant that the store may have taken for now until here.
    pub(crate) async fn latest_now(&self) -> Timestamp {
        shifted(self.now().await, self.harness.slack(), 1)
    }

    pub(crate) async fn advance(&self, by: Duration) {
        self.harness.advance(&self.place, by).await;
    }

    /// Moves the clock to `instant`: exactly, if it stands still, else to there or a little later.
    pub(crate) async fn advance_to(&self, instant: Timestamp) {
        loop {
            let left = instant.since(self.earliest_now().await);
            if left.is_zero() {
                return;
            }
            self.advance(left).await;
        }
    }

    /// Moves the clock to the last instant before `end` that can be aimed at.
    pub(crate) async fn advance_to_just_before(&self, end: Timestamp) {
        let margin = i64::try_from(self.margin().as_millis()).unwrap_or(i64::MAX);
        let aim = Timestamp::from_millis(end.as_millis().saturating_sub(margin));
        // Never past the end, whichever instant the store takes for now.
        loop {
            let left = aim.since(self.latest_now().await);
            if left.is_zero() {
                return;
            }
            self.advance(left).await;
        }
    }

    /// Whether it is still before `end`. Always so after [`World::advance_to_just_before`] if the clock stands still;
    /// one that runs may have passed it, and then what was answered proves nothing.
    pub(crate) async fn is_before(&self, end: Timestamp) -> bool {
        self.latest_now().await < end
    }

    fn margin(&self) -> Duration {
        match (self.harness.is_frozen(), self.harness.waits()) {
            (true, _) => Duration::from_millis(1),
            (false, false) => Duration::from_secs(2),
            (false, true) => Duration::from_millis(250),
        }
    }

    /// A lease for checks that let it lapse.
    pub(crate) fn lease(&self) -> Duration {
        if self.harness.waits() { Duration::from_millis(600) } else { Duration::from_secs(30) }
    }

    /// A retention, longer than the lease, for checks that let it end: twice the lease for those that wait, else an
    /// hour; held four times as long.
    pub(crate) fn retention(&self) -> Retention {
        let standard = if self.harness.waits() { 2 * self.lease() } else { Duration::from_secs(60 * 60) };
        Retention::new(standard).with_held(4 * standard)
    }

    pub(crate) fn token(&self) -> Token {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).token()
    }

    /// A claim under a fresh token for a request that [`fingerprint`] of `"request"` stands for, with the default lease
    /// and retention: nothing of it ends unless the clock is moved.
    pub(crate) fn claim(&self, scope: &Scope, key: &Key) -> Claim {
        Claim::new(scope.clone(), key.clone(), self.token(), fingerprint("request"))
    }

    /// The same with [`World::lease`] and [`World::retention`].
    pub(crate) fn short_claim(&self, scope: &Scope, key: &Key) -> Claim {
        self.claim(scope, key).with_lease(self.lease()).with_retention(self.retention())
    }

    /// Takes the record from the attempt of `grant`, under a fresh token.
    pub(crate) fn resolve(&self, grant: &Grant) -> Resolve {
        let owner = grant.owner();
        Resolve::new(owner.scope().clone(), owner.key().clone(), owner.attempt(), self.token())
    }
}

/// The instant that is `sign` times `by` from this one.
pub(crate) fn shifted(instant: Timestamp, by: Duration, sign: i64) -> Timestamp {
    let millis = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(instant.as_millis().saturating_add(millis.saturating_mul(sign)))
}

/// The scope of this name.
pub(crate) fn scope(name: &str) -> Scope {
    Scope::new(name).expect("the suite names scopes validly")
}

/// The key of this name.
pub(crate) fn key(name: &str) -> Key {
    Key::new(name).expect("the suite names keys validly")
}

/// The fingerprint of a request with this body.
pub(crate) fn fingerprint(body: &str) -> Fingerprint {
    Fingerprint::builder().part("body", body).build().expect("one part makes a fingerprint")
}
