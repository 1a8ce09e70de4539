//! The measures of the Redis store.
//!
//! `bare.rs` is what it is compared with; the others are the measures.

mod bare;
mod growth;
mod memory;
mod place;
mod replicas;
mod speed;

use test_servers::Proxy;

use crate::{
    Failure,
    cli::Options,
    redis::place::{Place, opened},
    report,
    rounds::Plan,
    trips,
};

/// Measures what was asked for and tells it.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    // It blocks while the server starts.
    let place = tokio::task::block_in_place(|| Place::prepare(options.aof));
    let plan = Plan { rounds: options.rounds, seconds: options.seconds, at_least: 8, at_most: 20_000 };
    report::say(&place.describe())?;
    if options.wants("claim") || options.wants("replay") || options.wants("writes") {
        speed::measure(&options, &place, plan).await?;
    }
    if options.wants("replicas") {
        replicas::measure(options.aof, plan).await?;
    }
    if options.wants("trips") {
        let url = place.url(place::TRIPS);
        let proxy = tokio::task::block_in_place(|| Proxy::start(&url));
        let store = opened(&proxy.url_through(&url)).await?;
        trips::measure(&store, &proxy, trips::Goals { conflict: 2, takeover: Some(2) }).await?;
    }
    if options.wants("memory") {
        memory::measure(&place).await?;
    }
    if options.wants("growth") {
        growth::measure(&place, plan, options.full).await?;
    }
    tokio::task::block_in_place(|| drop(place));
    Ok(())
}
