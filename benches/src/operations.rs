//! What is done to a store, each operation checked for its answer.

use std::{future, sync::Arc, time::Duration};

use idem_core::{Answer, Claim, Fenced, Owner, Response, Retention, Store};

use crate::{
    Failure, input,
    report::{self, Goal},
    rounds::{MANY, Operation, Plan, Side, in_flight, interleave},
};

/// A store, as services hold it.
pub(crate) type AnyStore = Arc<dyn Store>;

/// A lease that does not lapse while there is measuring.
const LONG: Duration = Duration::from_secs(6 * 60 * 60);

/// First claims, one for each operation.
struct Claims {
    store: AnyStore,
    claims: Vec<Claim>,
}

/// What the claims of keys that are not free must be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Replay,
    Conflict,
}

/// Claims of keys that are not free, over and over.
struct Again {
    store: AnyStore,
    claims: Arc<Vec<Claim>>,
    expected: Expected,
}

/// Completions, one for each operation.
struct Completions {
    store: AnyStore,
    work: Vec<(Owner, Response)>,
}

/// Renewals of the same leases, over and over.
struct Renewals {
    store: AnyStore,
    owners: Arc<Vec<Owner>>,
}

impl Operation for Claims {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        match idem_core::claim(&*self.store, &self.claims[number]).await? {
            Answer::Claimed(_) => Ok(()),
            other => Err(format!("a first claim was answered {other:?}").into()),
        }
    }
}

impl Operation for Again {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        match (self.expected, idem_core::claim(&*self.store, &self.claims[number % self.claims.len()]).await?) {
            (Expected::Replay, Answer::Replay { .. }) | (Expected::Conflict, Answer::Conflict { .. }) => Ok(()),
            (expected, other) => Err(format!("{expected:?} was to be the answer, and it is {other:?}").into()),
        }
    }
}

impl Operation for Completions {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        let (owner, response) = &self.work[number];
        written(self.store.complete(owner, response, Retention::default()).await?)
    }
}

impl Operation for Renewals {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        let owner = &self.owners[number % self.owners.len()];
        written(self.store.renew(owner, LONG).await?)
    }
}

fn written<T>(answer: Fenced<T>) -> Result<(), Failure> {
    match answer {
        Fenced::Written(_) => Ok(()),
        Fenced::Superseded => Err("an attempt that owns its record was superseded".into()),
    }
}

/// First claims in a scope, so many at a time.
pub(crate) fn claims<'a>(store: &AnyStore, scope: &'a str, tasks: usize) -> Side<'a> {
    let store = Arc::clone(store);
    Box::new(move |count| match input::claims(scope, count) {
        Ok(claims) => Box::pin(in_flight(tasks, count, first_claims(&store, claims))),
        Err(failure) => Box::pin(future::ready(Err(failure))),
    })
}

/// Claims of these keys, none of which is free.
pub(crate) fn again<'a>(store: &AnyStore, claims: &Arc<Vec<Claim>>, expected: Expected, tasks: usize) -> Side<'a> {
    let again = Arc::new(Again { store: Arc::clone(store), claims: Arc::clone(claims), expected });
    Box::new(move |count| Box::pin(in_flight(tasks, count, Arc::clone(&again))))
}

/// Renewals of these leases, by hours.
pub(crate) fn renewals<'a>(store: &AnyStore, owners: Vec<Owner>, tasks: usize) -> Side<'a> {
    let renewals = Arc::new(Renewals { store: Arc::clone(store), owners: Arc::new(owners) });
    Box::new(move |count| Box::pin(in_flight(tasks, count, Arc::clone(&renewals))))
}

/// These claims, whose keys must be free.
pub(crate) fn first_claims(store: &AnyStore, claims: Vec<Claim>) -> Arc<impl Operation> {
    Arc::new(Claims { store: Arc::clone(store), claims })
}

/// Completions by these owners with bodies of so many bytes.
pub(crate) fn completions(store: &AnyStore, owners: Vec<Owner>, body: usize) -> Arc<impl Operation> {
    let work = owners.into_iter().map(|owner| (owner, input::response(body))).collect();
    Arc::new(Completions { store: Arc::clone(store), work })
}

/// Claims so many new keys, 64 at a time.
pub(crate) async fn claimed(store: &AnyStore, scope: &str, count: usize) -> Result<Vec<(Claim, Owner)>, Failure> {
    let claims = input::claims(scope, count)?;
    let mut owners = Vec::with_capacity(count);
    for group in claims.chunks(MANY) {
        let answers = group.iter().map(|claim| idem_core::claim(&**store, claim));
        for (claim, answer) in group.iter().zip(futures_util::future::try_join_all(answers).await?) {
            match answer {
                Answer::Claimed(grant) => owners.push((claim.clone(), grant.owner().clone())),
                other => return Err(format!("a first claim was answered {other:?}").into()),
            }
        }
    }
    Ok(owners)
}

/// Completes them with bodies of so many bytes, 64 at a time.
pub(crate) async fn complete(store: &AnyStore, owners: Vec<Owner>, body: usize) -> Result<(), Failure> {
    let count = owners.len();
    in_flight(MANY, count, completions(store, owners, body)).await?;
    Ok(())
}

/// Retries of keys that are done.
pub(crate) async fn done(store: &AnyStore, scope: &str, count: usize, body: usize) -> Result<Arc<Vec<Claim>>, Failure> {
    let (claims, owners): (Vec<Claim>, Vec<Owner>) = claimed(store, scope, count).await?.into_iter().unzip();
    complete(store, owners, body).await?;
    Ok(Arc::new(claims.iter().map(input::retry).collect()))
}

/// Tells the ratio of the second side to the first, the base.
pub(crate) async fn compare(what: &str, goal: Goal, plan: Plan, sides: [Side<'_>; 2]) -> Result<(), Failure> {
    let rates = interleave(plan, &sides).await?;
    report::ratio(what, goal, rates.spread(|rates| rates[1] / rates[0]), rates.rate(0), rates.rate(1))
}

/// Tells how much more idem's times grew than the base's. The sides are base and idem where records are few, and base
/// and idem where they are many.
pub(crate) async fn compare_growth(what: &str, plan: Plan, sides: [Side<'_>; 4]) -> Result<(), Failure> {
    let rates = interleave(plan, &sides).await?;
    // Times grow as rates fall.
    let growth = rates.spread(|rates| (rates[1] / rates[3]) / (rates[0] / rates[2]));
    report::ratio(what, Goal::AtMost(1.1), growth, rates.rate(2), rates.rate(3))
}
