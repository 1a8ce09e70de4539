//! How a store's row becomes an answer, and a written row an owner.

use std::time::Duration;

use crate::{
    AttemptId, Checkpoints, Claim, ClaimRow, Differences, Fenced, Origin, Owner, Record, Resolve, Response, State,
    Store, StoreError, StoreErrorKind, Timestamp, TokenReused,
    machine::{self, Verdict},
};

/// The answer to a claim.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The attempt owns the record: run the operation.
    Claimed(Grant),
    /// The same, after an attempt that ended silently: it may have had effects.
    TakenOver(Grant),
    /// The operation is done: send this instead of running it.
    Replay {
        /// The recorded response.
        response: Response,
        /// When it was recorded, by the store's clock.
        stored_at: Timestamp,
    },
    /// Another attempt is at it.
    Conflict {
        /// The time left of its lease; none if the store could not tell, because the owner is just finishing.
        left: Option<Duration>,
        /// The attempt, where the store could see it: what [`Store::wait`] waits on.
        seen: Option<AttemptId>,
    },
    /// The key was used for another request.
    Reuse {
        /// What differs from it.
        differences: Differences,
    },
    /// The outcome of an earlier attempt is unknown and waits for someone to [`resolve`] it.
    Unknown,
    /// The claim is a late duplicate of one that is over.
    Superseded,
}

/// The ownership of a record, and what its attempt should know.
#[derive(Clone, Debug)]
pub struct Grant {
    owner: Owner,
    record: Record,
}

impl Grant {
    fn of(owner: Owner, record: Record) -> Self {
        Self { owner, record }
    }

    /// What every write of the attempt carries.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The attempt's number, from 1.
    pub fn number(&self) -> u32 {
        self.record.number
    }

    /// How the attempt came to own the record.
    pub fn origin(&self) -> Origin {
        self.record.origin
    }

    /// Whether an earlier attempt may have had effects.
    pub fn is_repeat(&self) -> bool {
        self.record.repeat
    }

    /// What earlier attempts left.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.record.checkpoints
    }

    /// When the lease ends, by the store's clock, unless it is renewed.
    pub fn lease_end(&self) -> Timestamp {
        self.record.lease_end
    }
}

/// Claims, and turns the row that the store gives into an answer.
///
/// A repeated claim whose attempt took over is answered TakenOver again. One that the store found under its own token,
/// without writing, is renewed first: a second round trip.
///
/// # Errors
///
/// Those of [`Store::claim`] and [`Store::renew`], and of kind contract if the token was used for two operations or
/// the row is not one that the store may give.
///
/// # Cancellation safety
///
/// Dropping the future leaves the claim applied or not; repeating it with its token finds out.
pub async fn claim(store: &dyn Store, claim: &Claim) -> Result<Answer, StoreError> {
    answer(store, claim, store.claim(claim).await?).await
}

/// Turns the row that a claim gave into an answer: for stores that can also claim in a transaction of the caller's,
/// where the row does not come from [`Store::claim`]. Everybody else calls [`claim`].
///
/// # Errors
///
/// Those of [`Store::renew`], and of kind contract if the token was used for two operations or the row is not one that
/// the store may give.
///
/// # Cancellation safety
///
/// As for [`claim`].
pub async fn answer(store: &dyn Store, claim: &Claim, row: ClaimRow) -> Result<Answer, StoreError> {
    match row {
        ClaimRow::Written(record) => written(store, claim, record),
        ClaimRow::Busy { seen } => Ok(Answer::Conflict { left: None, seen }),
        ClaimRow::Found { record, now } => {
            // Without a `now` only rows that no clock decides can follow; for them any instant of the lease will do.
            let judged_at = now.unwrap_or(Timestamp::MIN);
            let decision = machine::claim(Some(&record), claim, judged_at)
                .map_err(|TokenReused| StoreError::token_reused(store.backend()))?;
            match decision.answer {
                Verdict::Replay => replay(store, record),
                Verdict::Reuse { differences } => Ok(Answer::Reuse { differences }),
                Verdict::Unknown => Ok(Answer::Unknown),
                Verdict::Superseded => Ok(Answer::Superseded),
                Verdict::Conflict { left } if now.is_some() => {
                    Ok(Answer::Conflict { left: Some(left), seen: Some(record.attempt()) })
                }
                Verdict::Claimed if record.token == claim.token() => renewed(store, claim, record).await,
                Verdict::Conflict { .. } | Verdict::Claimed | Verdict::TakenOver => {
                    Err(contract(store, "claim", "it gave a row that it had to write, or gave no instant with it"))
                }
            }
        }
    }
}

/// Resolves, and turns the row that the store wrote into the resolver's ownership.
///
/// # Errors
///
/// Those of [`Store::resolve`], and of kind contract if the row is not one that the store may give.
///
/// # Cancellation safety
///
/// As for [`claim`].
pub async fn resolve(store: &dyn Store, resolve: &Resolve) -> Result<Fenced<Grant>, StoreError> {
    match store.resolve(resolve).await? {
        Fenced::Superseded => Ok(Fenced::Superseded),
        Fenced::Written(record) if record.state == State::InProgress && record.token == resolve.token() => {
            let owner = Owner::of(resolve.scope(), resolve.key(), &record);
            Ok(Fenced::Written(Grant::of(owner, record)))
        }
        Fenced::Written(_) => Err(contract(store, "resolve", "it wrote a row that is not the resolver's")),
    }
}

fn written(store: &dyn Store, claim: &Claim, record: Record) -> Result<Answer, StoreError> {
    if record.state != State::InProgress || record.token != claim.token() {
        return Err(contract(store, "claim", "it wrote a row that is not the claim's"));
    }
    let took_over = record.origin == Origin::Takeover;
    let grant = Grant::of(Owner::of(claim.scope(), claim.key(), &record), record);
    Ok(if took_over { Answer::TakenOver(grant) } else { Answer::Claimed(grant) })
}

async fn renewed(store: &dyn Store, claim: &Claim, record: Record) -> Result<Answer, StoreError> {
    let owner = Owner::of(claim.scope(), claim.key(), &record);
    match store.renew(&owner, claim.lease()).await? {
        Fenced::Written(()) => written(store, claim, record),
        Fenced::Superseded => Ok(Answer::Superseded),
    }
}

fn replay(store: &dyn Store, record: Record) -> Result<Answer, StoreError> {
    let stored_at = record.settled.unwrap_or(record.claimed);
    match record.state {
        State::Done(response) => Ok(Answer::Replay { response, stored_at }),
        _ => Err(contract(store, "claim", "it gave no response with a record that is done")),
    }
}

fn contract(store: &dyn Store, operation: &'static str, what: &str) -> StoreError {
    let message = format!("{what}; run the conformance suite against this store");
    StoreError::new(StoreErrorKind::Contract, store.backend(), operation, message)
}

#[cfg(test)]
mod tests;
