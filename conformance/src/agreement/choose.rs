//! What a random sequence does next: anything, but mostly where rules meet.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::LazyLock,
    time::Duration,
};

use bytes::Bytes;
use idem_core::{
    AttemptId, Body, Checkpoint, Claim, Fingerprint, FingerprintKey, Key, MAX_CHECKPOINT_BYTES, NotRetained, OnLapse,
    Owner, Resolve, Response, Retention, Scope, Timestamp, Token,
};

use super::{Id, Model, step::Step};
use crate::{
    Harness,
    rng::Rng,
    world::{key, scope},
};

/// The requests that claims are made for. The third is the first in keyed form.
pub(super) fn fingerprints() -> &'static [Fingerprint; 4] {
    static ALL: LazyLock<[Fingerprint; 4]> = LazyLock::new(|| {
        let secret = FingerprintKey::new("2026-11", b"a secret of thirty-two bytes or more").expect("a valid key");
        [
            Fingerprint::builder().part("body", "a").part("target", "/payments"),
            Fingerprint::builder().part("body", "bb").part("target", "/payments"),
            Fingerprint::keyed(&secret).part("body", "a").part("target", "/payments"),
            Fingerprint::builder().part("body", "a"),
        ]
        .map(|builder| builder.build().expect("valid parts"))
    });
    &ALL
}

/// The records that a sequence is about, the first ones more than the last.
fn ids() -> Vec<Id> {
    let scopes = [scope("tenant"), scope("Tenant"), Scope::global()];
    let keys = [key("k"), key("k%"), key("k ")];
    keys.iter().flat_map(|key| scopes.iter().map(move |scope| (scope.clone(), key.clone()))).collect()
}

pub(super) struct Chooser {
    rng: Rng,
    ids: Vec<Id>,
    /// Divides every duration, for stores that have to be waited for.
    haste: u32,
    can_reopen: bool,
    /// What the store adds to the value of each checkpoint, in bytes.
    checkpoint_overhead: usize,
    /// Every attempt that ever owned a record, oldest first.
    owners: Vec<Owner>,
    tokens: Vec<Token>,
}

impl Chooser {
    pub(super) fn new(seed: u64, harness: &Harness) -> Self {
        Self {
            rng: Rng::from_seed(seed),
            ids: ids(),
            haste: if harness.waits() { 100 } else { 1 },
            can_reopen: harness.is_durable(),
            checkpoint_overhead: harness.added_to_checkpoints(),
            owners: Vec::new(),
            tokens: Vec::new(),
        }
    }

    pub(super) fn ids(&self) -> &[Id] {
        &self.ids
    }

    /// Remembers an attempt that owns its record from now on.
    pub(super) fn granted(&mut self, owner: &Owner) {
        if !self.owners.contains(owner) {
            self.owners.push(owner.clone());
        }
    }

    /// Which of `handles` to use next.
    pub(super) fn handle(&mut self, handles: usize) -> usize {
        self.rng.below(handles)
    }

    pub(super) fn next(&mut self, model: &Model, now: Timestamp) -> Step {
        let Some(owner) = self.owner(model) else {
            return self.claim();
        };
        match self.rng.below(100) {
            0..18 => Step::Advance(self.advance(model, now)),
            18..44 => self.claim(),
            44..52 => Step::Complete(owner, self.response(), self.retention()),
            52..59 => Step::Release(owner),
            59..65 => Step::Forget(owner),
            65..70 => Step::Hold(owner, self.retention()),
            70..77 => Step::Renew(owner, self.lease()),
            77..84 => {
                let checkpoint = self.checkpoint(model, &owner);
                Step::Checkpoint(owner, checkpoint)
            }
            84..91 => self.resolve(model, &owner),
            91 => Step::Read(self.id()),
            92 => Step::Wait((owner.scope().clone(), owner.key().clone()), owner.attempt()),
            93..95 => Step::Sweep(self.limit()),
            95..98 => Step::Lapsed(self.after(), self.limit()),
            98 => Step::Purge(self.id().0, self.limit()),
            _ if self.can_reopen => Step::Reopen,
            _ => Step::Read(self.id()),
        }
    }

    fn id(&mut self) -> Id {
        let among = if self.rng.chance(70) { 2 } else { self.ids.len() };
        self.ids[self.rng.below(among)].clone()
    }

    /// Mostly the owner of a record, often one that was it, seldom one of another number under the same token.
    fn owner(&mut self, model: &Model) -> Option<Owner> {
        if self.owners.is_empty() {
            return None;
        }
        let id = self.id();
        let current = model.get(&id).map(|record| record.attempt());
        let is_current = |owner: &&Owner| {
            *owner.scope() == id.0 && *owner.key() == id.1 && current.is_some_and(|current| owner.attempt() == current)
        };
        match self.owners.iter().find(is_current) {
            Some(owner) if self.rng.chance(70) => Some(owner.clone()),
            _ => {
                let recent = self.owners.len().min(if self.rng.chance(70) { 8 } else { usize::MAX });
                let back = self.rng.below(recent);
                Some(self.owners[self.owners.len() - 1 - back].clone())
            }
        }
    }

    fn advance(&mut self, model: &Model, now: Timestamp) -> Duration {
        let ends = model.values().flat_map(|record| [record.lease_end, record.expiry]);
        let around = ends.flat_map(|end| [-1, 0, 1].map(|off| Timestamp::from_millis(end.as_millis() + off)));
        let mut ahead: Vec<_> = around.filter(|instant| *instant > now).map(|instant| instant.since(now)).collect();
        ahead.sort_unstable();
        ahead.dedup();
        if self.haste > 1 {
            ahead.retain(|wait| *wait < Duration::from_millis(400));
        }
        match self.rng.below(10) {
            0 => Duration::from_millis(1),
            1 => self.lease(),
            2 if !ahead.is_empty() => *self.rng.pick(&ahead),
            _ if !ahead.is_empty() => ahead[self.rng.below(ahead.len().min(6))],
            _ => Duration::from_millis(1),
        }
    }

    fn claim(&mut self) -> Step {
        let (scope, key) = self.id();
        let token = match self.tokens.as_slice() {
            [.., last] if self.rng.chance(10) => *last,
            all if !all.is_empty() && self.rng.chance(10) => *self.rng.pick(all),
            _ => self.rng.token(),
        };
        self.tokens.push(token);
        let mut claim = Claim::new(scope, key, token, self.fingerprint())
            .with_lease(self.lease())
            .with_retention(self.retention())
            .with_on_lapse(if self.rng.chance(25) { OnLapse::Hold } else { OnLapse::TakeOver })
            .with_lapse_limit(if self.rng.chance(20) { NonZeroU32::new(*self.rng.pick(&[1, 2, 3])) } else { None });
        while self.rng.chance(15) {
            claim = claim.accepting(self.fingerprint());
        }
        Step::Claim(claim)
    }

    fn fingerprint(&mut self) -> Fingerprint {
        let all = fingerprints();
        if self.rng.chance(75) { all[0].clone() } else { self.rng.pick(all).clone() }
    }

    fn resolve(&mut self, model: &Model, owner: &Owner) -> Step {
        let id = (owner.scope().clone(), owner.key().clone());
        let seen: AttemptId = match model.get(&id) {
            Some(record) if self.rng.chance(60) => record.attempt(),
            _ => owner.attempt(),
        };
        // The attempt's own token, and older ones: then a token comes back under another number.
        let token = match self.rng.below(10) {
            0 => seen.token,
            1 | 2 => *self.rng.pick(&self.tokens),
            _ => self.rng.token(),
        };
        self.tokens.push(token);
        let resolve = Resolve::new(id.0, id.1, seen, token);
        Step::Resolve(resolve.with_lease(self.lease()).with_retention(self.retention()))
    }

    fn response(&mut self) -> Response {
        let body = match self.rng.below(8) {
            0 => Body::Kept(Bytes::new()),
            1 => Body::NotRetained(*self.rng.pick(&[NotRetained::TooLarge, NotRetained::Secret])),
            2 => Body::Sealed { key_id: "2026-11".into(), bytes: self.rng.bytes(20).into() },
            3 => Body::Kept(br#"{ "b":1.0, "a":1e2, "a":3 }"#.as_slice().into()),
            4 => Body::Kept(self.rng.bytes(50_000).into()),
            _ => Body::Kept(self.rng.bytes(30).into()),
        };
        let response = Response::new(*self.rng.pick(&[200, 201, 409, 599])).with_kept(body);
        match self.rng.below(3) {
            0 => response.with_header("x-twice", "2").with_header("a", self.rng.bytes(3)).with_header("x-twice", "1"),
            1 => response.with_trailer("grpc-status", "0"),
            _ => response,
        }
    }

    /// A small value, or one that comes to the limit of its record, or just over it.
    fn checkpoint(&mut self, model: &Model, owner: &Owner) -> Checkpoint {
        let name = *self.rng.pick(&["charge", "mail", "ship", "a ✓ name"]);
        let id = (owner.scope().clone(), owner.key().clone());
        let (used, kept) =
            model.get(&id).map_or((0, 0), |record| (record.checkpoints.size(), record.checkpoints.iter().count()));
        let room = MAX_CHECKPOINT_BYTES.saturating_sub(used + name.len());
        // What a store that adds to each value has room for. One for which the machine has room and the store has not
        // is never tried.
        let added = (kept + 1) * self.checkpoint_overhead;
        let length = match room.checked_sub(added) {
            None => room + 1,
            Some(room_left) => match self.rng.below(8) {
                0 => 0,
                1 => room_left,
                2..4 => room + 1,
                4 => room_left / 2,
                _ => room_left.min(10),
            },
        };
        Checkpoint::new(name, self.rng.bytes(length)).expect("the suite names checkpoints validly")
    }

    fn lease(&mut self) -> Duration {
        let lease = match self.rng.below(12) {
            0 => Duration::from_millis(1),
            1 => return Duration::from_nanos(1_000_001), // counts as 2 ms
            2..7 => Duration::from_secs(1),
            _ => Duration::from_secs(30),
        };
        self.in_haste(lease)
    }

    fn retention(&mut self) -> Retention {
        let standard = *self.rng.pick(&[5, 45, 60, 24 * 60 * 60].map(Duration::from_secs));
        let held = *self.rng.pick(&[20, 90, 30 * 24 * 60 * 60].map(Duration::from_secs));
        Retention::new(self.in_haste(standard)).with_held(self.in_haste(held))
    }

    fn in_haste(&self, duration: Duration) -> Duration {
        (duration / self.haste).max(Duration::from_millis(1))
    }

    fn limit(&mut self) -> NonZeroUsize {
        NonZeroUsize::new(*self.rng.pick(&[1, 2, 3, 1000])).unwrap_or(NonZeroUsize::MIN)
    }

    fn after(&mut self) -> Option<(Scope, Key)> {
        self.rng.chance(60).then(|| self.id())
    }
}
