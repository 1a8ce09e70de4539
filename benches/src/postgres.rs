//! The measures of the PostgreSQL store.
//!
//! `bare.rs` is what it is compared with; the others are the measures.

mod bare;
mod growth;
mod hot;
mod place;
mod speed;
mod wal;

use test_servers::Proxy;

use crate::{
    Failure,
    cli::Options,
    postgres::{bare::Bare, place::Place},
    report::{self, Goal, number},
    rounds::{Plan, Side, interleave},
    trips,
};

/// How many connections the base may use where 64 operations are in flight.
const POOL: usize = 8;

/// Measures what was asked for and tells it.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    // It blocks while the server starts.
    let place = tokio::task::block_in_place(|| Place::prepare(&options));
    let plan = Plan { rounds: options.rounds, seconds: options.seconds, at_least: 8, at_most: 10_000 };
    let done = measure(&options, &place, plan).await;
    tokio::task::block_in_place(|| place.clear());
    done
}

async fn measure(options: &Options, place: &Place, plan: Plan) -> Result<(), Failure> {
    report::say(&place.describe())?;
    if options.wants("sync") {
        sync(place, plan).await?;
    }
    if options.wants("claim") || options.wants("replay") || options.wants("pooler") {
        speed::measure(options, place, plan).await?;
    }
    if options.wants("trips") {
        let proxy = tokio::task::block_in_place(|| Proxy::start(&place.url));
        let store = place.store("trips", &proxy.url_through(&place.url)).await?;
        trips::measure(&store, &proxy, trips::Goals { conflict: 1, takeover: None }).await?;
    }
    if options.wants("wal") {
        wal::measure(place).await?;
    }
    if options.wants("hot") {
        hot::measure(place).await?;
    }
    if options.wants("growth") {
        growth::measure(place, plan, options.full).await?;
    }
    Ok(())
}

/// What it costs that a commit waits for the disk: the same bare insert with and without.
async fn sync(place: &Place, plan: Plan) -> Result<(), Failure> {
    const TABLE: &str = "sync";
    place.store(TABLE, &place.url).await?;
    let without = Bare::one(&place.url, &place.table(TABLE), true).await?;
    without.run("SET synchronous_commit = off").await?;
    let with = Bare::one(&place.url, &place.table(TABLE), true).await?;
    let sides: [Side<'_>; 2] = [&with, &without].map(|bare| bare.insertions(TABLE, 1));
    let rates = interleave(plan, &sides).await?;
    let micros = rates.spread(|rates| 1e6 / rates[0] - 1e6 / rates[1]);
    report::say("\nA commit that waits for the disk against one that does not")?;
    number(
        "cost of a sync",
        Goal::None,
        micros.median.round(),
        &format!("µs [{:.0}..{:.0}]", micros.lowest, micros.highest),
    )
}
