//! How fast claims, replays and the writes of an attempt are.

use std::sync::Arc;

use bytes::Bytes;
use idem_core::{Claim, Owner};

use crate::{
    Failure,
    cli::Options,
    input,
    operations::{AnyStore, Expected, again, claimed, compare, completions, done, first_claims, renewals},
    redis::{
        bare::Bare,
        place::{Place, SPEED, name, names, opened},
    },
    report::{self, Goal},
    rounds::{MANY, Plan, Side, in_flight},
};

/// How many records are replayed in turn, and the bytes of their bodies.
const DONE: usize = 1000;
const BODY: usize = 512;

/// How many are in flight, and what claims and replays have to come to then.
const IN_FLIGHT: [(usize, Goal, Goal); 3] =
    [(1, Goal::None, Goal::None), (MANY, Goal::AtLeast(0.8), Goal::AtLeast(0.9)), (256, Goal::None, Goal::None)];

pub(crate) async fn measure(options: &Options, place: &Place, plan: Plan) -> Result<(), Failure> {
    let url = place.url(SPEED);
    let (store, bare) = (opened(&url).await?, Bare::connect(&url).await?);
    let (running, owners): (Vec<Claim>, Vec<Owner>) = claimed(&store, "running", DONE).await?.into_iter().unzip();
    let value = value(place, SPEED, &running[0]);

    if options.wants("claim") {
        report::ratios(&format!("Claims against a bare SET PX of the same {} bytes", value.len()))?;
        for (tasks, goal, _) in IN_FLIGHT {
            let sides = [bare.sets(place, SPEED, &value, tasks), claims(place, SPEED, &store, tasks)];
            compare(&format!("claim, {tasks} in flight"), goal, plan.of(tasks), sides).await?;
        }
    }
    if options.wants("replay") {
        let retries = done(&store, "done", DONE, BODY).await?;
        report::ratios(&format!("Replays against a bare GET of the same value, with a body of {BODY} bytes"))?;
        for (tasks, _, goal) in IN_FLIGHT {
            let sides = [bare.gets(&retries, tasks), again(&store, &retries, Expected::Replay, tasks)];
            compare(&format!("replay, {tasks} in flight"), goal, plan.of(tasks), sides).await?;
        }
        // What a replay sends is a claim's command.
        let replays = again(&store, &retries, Expected::Replay, MANY);
        let sides = [bare.sets(place, SPEED, &value, MANY), replays];
        let what = format!("replay, {MANY} in flight; base: the SET PX");
        compare(&what, Goal::None, plan.of(MANY), sides).await?;
    }
    if options.wants("writes") {
        report::ratios("The others against the same bare SET PX")?;
        let retries = Arc::new(running.iter().map(input::retry).collect());
        // None of them lapses meanwhile.
        renewals(&store, owners.clone(), MANY)(owners.len()).await?;
        for tasks in [1, MANY] {
            let sets = || bare.sets(place, SPEED, &value, tasks);
            let plan = plan.of(tasks);
            let sides = [sets(), again(&store, &retries, Expected::Conflict, tasks)];
            compare(&format!("conflict, {tasks} in flight"), Goal::None, plan, sides).await?;
            let sides = [sets(), renewals(&store, owners.clone(), tasks)];
            compare(&format!("renewal, {tasks} in flight"), Goal::None, plan, sides).await?;
            let sides = [sets(), completed(place, SPEED, &store, tasks)];
            compare(&format!("completion, {BODY} bytes, {tasks} in flight"), Goal::None, plan, sides).await?;
        }
    }
    Ok(())
}

/// The bytes that a claim has written.
pub(crate) fn value(place: &Place, database: usize, claim: &Claim) -> Bytes {
    place.command(database, &["GET", &name(claim)]).bytes().to_vec().into()
}

/// First claims, so many at a time. The keys are gone afterwards.
pub(crate) fn claims<'a>(place: &'a Place, database: usize, store: &AnyStore, tasks: usize) -> Side<'a> {
    let store = Arc::clone(store);
    Box::new(move |count| {
        let store = Arc::clone(&store);
        Box::pin(async move {
            let claims = input::claims("new", count)?;
            let names = names(&claims);
            let took = in_flight(tasks, count, first_claims(&store, claims)).await?;
            place.remove(database, names);
            Ok(took)
        })
    })
}

/// Completions of new claims, which are made beforehand. The keys are gone afterwards.
fn completed<'a>(place: &'a Place, database: usize, store: &AnyStore, tasks: usize) -> Side<'a> {
    let store = Arc::clone(store);
    Box::new(move |count| {
        let store = Arc::clone(&store);
        Box::pin(async move {
            let (claims, owners): (Vec<Claim>, Vec<Owner>) = claimed(&store, "new", count).await?.into_iter().unzip();
            let took = in_flight(tasks, count, completions(&store, owners, BODY)).await?;
            place.remove(database, names(&claims));
            Ok(took)
        })
    })
}
