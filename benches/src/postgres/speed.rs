//! How fast claims and replays are.

use std::sync::Arc;

use crate::{
    Failure,
    cli::Options,
    postgres::{
        MANY,
        bare::Bare,
        operations::{Claims, Replays, done},
        place::Place,
    },
    report::{self, Goal},
    rounds::{Plan, Side, in_flight, interleave},
};

/// The table that both sides work on.
const TABLE: &str = "speed";

/// How many records are replayed in turn, and the bytes of their bodies.
const DONE: usize = 1000;
const BODY: usize = 512;

pub(crate) async fn measure(options: &Options, place: &Place, plan: Plan) -> Result<(), Failure> {
    let (url, table) = (place.url.as_str(), place.table(TABLE));
    let store = place.store(TABLE, url).await?;
    let retries = done(&store, "done", DONE, BODY).await?;
    let replays = Arc::new(Replays { store: store.clone(), claims: retries.clone() });
    let (one, pool) = (Bare::one(url, &table, true).await?, Bare::pool(url, &table, true)?);

    report::ratios("PostgreSQL: claims against a bare INSERT, replays against a bare read")?;
    if options.wants("claim") {
        for (what, bare, tasks, goal) in [
            ("claim, 1 in flight; base: 1 connection", &one, 1, Goal::AtLeast(0.95)),
            ("claim, 64 in flight; base: pool of 8", &pool, MANY, Goal::AtLeast(3.5)),
        ] {
            compare(what, goal, plan.of(tasks), [inserts(bare, tasks), claims(&store, tasks)]).await?;
        }
    }
    if options.wants("replay") {
        for (what, bare, tasks, goal) in [
            ("replay, 1 in flight; base: 1 connection", &one, 1, Goal::AtLeast(0.85)),
            ("replay, 64 in flight; base: pool of 8", &pool, MANY, Goal::AtLeast(1.2)),
        ] {
            compare(what, goal, plan.of(tasks), [reads(bare, &retries, tasks), answers(&replays, tasks)]).await?;
        }
    }
    if !options.wants("pooler") {
        return Ok(());
    }
    let pooler = place.pooler();
    let url = pooler.url_through(url);
    let store = place.store_through_pooler(TABLE, &url).await?;
    let replays = Arc::new(Replays { store: store.clone(), claims: retries.clone() });
    let (one, pool) = (Bare::one(&url, &table, false).await?, Bare::pool(&url, &table, false)?);
    let (major, minor) = pooler.version();
    report::ratios(&format!("Through PgBouncer {major}.{minor} in transaction mode, all without named statements"))?;
    for (what, bare, tasks) in
        [("replay, 1 in flight; base: 1 connection", &one, 1), ("replay, 64 in flight; base: pool of 8", &pool, MANY)]
    {
        let goal = Goal::AtLeast(0.8);
        compare(what, goal, plan.of(tasks), [reads(bare, &retries, tasks), answers(&replays, tasks)]).await?;
    }
    for (what, bare, tasks) in
        [("claim, 1 in flight; base: 1 connection", &one, 1), ("claim, 64 in flight; base: pool of 8", &pool, MANY)]
    {
        compare(what, Goal::None, plan.of(tasks), [inserts(bare, tasks), claims(&store, tasks)]).await?;
    }
    Ok(())
}

async fn compare(what: &str, goal: Goal, plan: Plan, sides: [Side<'_>; 2]) -> Result<(), Failure> {
    let rates = interleave(plan, &sides).await?;
    report::ratio(what, goal, rates.spread(|rates| rates[1] / rates[0]), rates.rate(0), rates.rate(1))
}

pub(crate) fn inserts(bare: &Bare, tasks: usize) -> Side<'_> {
    Box::new(move |count| Box::pin(async move { in_flight(tasks, count, bare.inserts("new", count)?).await }))
}

pub(crate) fn claims(store: &idem_postgres::PostgresStore, tasks: usize) -> Side<'_> {
    Box::new(move |count| Box::pin(async move { in_flight(tasks, count, Claims::new(store, "new", count)?).await }))
}

pub(crate) fn reads<'a>(bare: &Bare, retries: &[idem_core::Claim], tasks: usize) -> Side<'a> {
    let reads = bare.reads(retries);
    Box::new(move |count| Box::pin(in_flight(tasks, count, Arc::clone(&reads))))
}

pub(crate) fn answers<'a>(replays: &Arc<Replays>, tasks: usize) -> Side<'a> {
    let replays = Arc::clone(replays);
    Box::new(move |count| Box::pin(in_flight(tasks, count, Arc::clone(&replays))))
}
