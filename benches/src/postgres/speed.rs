//! How fast claims and replays are.

use crate::{
    Failure,
    cli::Options,
    operations::{Expected, again, claims, compare, done},
    postgres::{bare::Bare, place::Place},
    report::{self, Goal},
    rounds::{MANY, Plan},
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
    let (one, pool) = (Bare::one(url, &table, true).await?, Bare::pool(url, &table, true)?);

    report::ratios("PostgreSQL: claims against a bare INSERT, replays against a bare read")?;
    if options.wants("claim") {
        for (what, bare, tasks, goal) in [
            ("claim, 1 in flight; base: 1 connection", &one, 1, Goal::AtLeast(0.95)),
            ("claim, 64 in flight; base: pool of 8", &pool, MANY, Goal::AtLeast(3.5)),
        ] {
            let sides = [bare.insertions("new", tasks), claims(&store, "new", tasks)];
            compare(what, goal, plan.of(tasks), sides).await?;
        }
    }
    if options.wants("replay") {
        for (what, bare, tasks, goal) in [
            ("replay, 1 in flight; base: 1 connection", &one, 1, Goal::AtLeast(0.85)),
            ("replay, 64 in flight; base: pool of 8", &pool, MANY, Goal::AtLeast(1.2)),
        ] {
            let sides = [bare.reads(&retries, tasks), again(&store, &retries, Expected::Replay, tasks)];
            compare(what, goal, plan.of(tasks), sides).await?;
        }
    }
    if !options.wants("pooler") {
        return Ok(());
    }
    let pooler = place.pooler();
    let url = pooler.url_through(url);
    let store = place.store_through_pooler(TABLE, &url).await?;
    let (one, pool) = (Bare::one(&url, &table, false).await?, Bare::pool(&url, &table, false)?);
    let (major, minor) = pooler.version();
    report::ratios(&format!("Through PgBouncer {major}.{minor} in transaction mode, all without named statements"))?;
    for (what, bare, tasks) in
        [("replay, 1 in flight; base: 1 connection", &one, 1), ("replay, 64 in flight; base: pool of 8", &pool, MANY)]
    {
        let sides = [bare.reads(&retries, tasks), again(&store, &retries, Expected::Replay, tasks)];
        compare(what, Goal::AtLeast(0.8), plan.of(tasks), sides).await?;
    }
    for (what, bare, tasks) in
        [("claim, 1 in flight; base: 1 connection", &one, 1), ("claim, 64 in flight; base: pool of 8", &pool, MANY)]
    {
        let sides = [bare.insertions("new", tasks), claims(&store, "new", tasks)];
        compare(what, Goal::None, plan.of(tasks), sides).await?;
    }
    Ok(())
}
