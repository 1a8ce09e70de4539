//! The rules that are checked: the machine's, and in [`super::wrong`] others.

use std::time::Duration;

use crate::{
    Checkpoint, Checkpointed, Claim, Fenced, Owner, Record, Resolve, Response, Retention, Timestamp,
    machine::{self, Decision, TokenReused, Verdict},
};

/// What decides. Every rule is the machine's unless it is broken on purpose.
pub(super) trait Rules {
    fn claim(&self, found: Option<&Record>, claim: &Claim, now: Timestamp) -> Result<Decision<Verdict>, TokenReused> {
        machine::claim(found, claim, now)
    }

    fn complete(
        &self,
        found: Option<&Record>,
        owner: &Owner,
        response: &Response,
        retention: Retention,
        now: Timestamp,
    ) -> Decision<Fenced<Response>> {
        machine::complete(found, owner, response, retention, now)
    }

    fn release(&self, found: Option<&Record>, owner: &Owner, now: Timestamp) -> Decision<Fenced<()>> {
        machine::release(found, owner, now)
    }

    fn forget(&self, found: Option<&Record>, owner: &Owner, now: Timestamp) -> Decision<Fenced<()>> {
        machine::forget(found, owner, now)
    }

    fn hold(
        &self,
        found: Option<&Record>,
        owner: &Owner,
        retention: Retention,
        now: Timestamp,
    ) -> Decision<Fenced<()>> {
        machine::hold(found, owner, retention, now)
    }

    fn renew(&self, found: Option<&Record>, owner: &Owner, lease: Duration, now: Timestamp) -> Decision<Fenced<()>> {
        machine::renew(found, owner, lease, now)
    }

    fn checkpoint(
        &self,
        found: Option<&Record>,
        owner: &Owner,
        checkpoint: &Checkpoint,
        now: Timestamp,
    ) -> Decision<Fenced<Checkpointed>> {
        machine::checkpoint(found, owner, checkpoint, now)
    }

    fn resolve(&self, found: Option<&Record>, resolve: &Resolve, now: Timestamp) -> Decision<Fenced<()>> {
        machine::resolve(found, resolve, now)
    }
}

/// The rules as they are.
pub(super) struct TheMachine;

impl Rules for TheMachine {}
