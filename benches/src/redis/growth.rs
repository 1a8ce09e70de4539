//! What becomes of the ratios when records are many.

use std::sync::Arc;

use bytes::Bytes;
use idem_core::Claim;

use crate::{
    Failure, input,
    operations::{AnyStore, Expected, again, claimed, compare_growth, done},
    redis::{
        bare::Bare,
        place::{GROWTH, Place, name, opened},
        speed::{claims, value},
    },
    report,
    rounds::{MANY, Plan},
};

const FEW: usize = 10_000;

/// How many records are replayed in turn: of a large database, other ones than fit into a processor's cache.
const REPLAYED: usize = 5_000;

pub(crate) async fn measure(place: &Place, plan: Plan, full: bool) -> Result<(), Failure> {
    let small = Sized::fill(place, GROWTH, FEW).await?;
    let most = if full { 10_000_000 } else { 1_000_000 };
    for (more, many) in [100_000, most].into_iter().enumerate() {
        let large = Sized::fill(place, GROWTH + 1 + more, many).await?;
        report::ratios(&format!("Growth from {FEW} to {many} records, against the growth of the bare command"))?;
        for tasks in [1, MANY] {
            // Few enough that the small database stays small.
            let plan = Plan { at_most: 1_000, ..plan }.of(tasks);
            let sides = [
                small.bare.sets(place, small.database, &small.value, tasks),
                claims(place, small.database, &small.store, tasks),
                large.bare.sets(place, large.database, &large.value, tasks),
                claims(place, large.database, &large.store, tasks),
            ];
            compare_growth(&format!("claim, {tasks} in flight"), plan, sides).await?;
            let sides = [
                small.bare.gets(&small.retries, tasks),
                again(&small.store, &small.retries, Expected::Replay, tasks),
                large.bare.gets(&large.retries, tasks),
                again(&large.store, &large.retries, Expected::Replay, tasks),
            ];
            compare_growth(&format!("replay, {tasks} in flight"), plan, sides).await?;
        }
    }
    Ok(())
}

/// A database of so many records, and both ways to it.
struct Sized {
    database: usize,
    store: AnyStore,
    bare: Bare,
    value: Bytes,
    retries: Arc<Vec<Claim>>,
}

impl Sized {
    /// Makes one record through the store, and the others as its copies under other keys.
    async fn fill(place: &Place, database: usize, records: usize) -> Result<Self, Failure> {
        /// Copies with the time to live.
        const COPY: &str = "for n = ARGV[2], ARGV[3] do
            redis.call('COPY', KEYS[1], ARGV[1] .. string.format('%032d', n))
        end";
        const AT_A_TIME: usize = 10_000;
        let url = place.url(database);
        let (store, bare) = (opened(&url).await?, Bare::connect(&url).await?);
        let first = done(&store, "done", 1, 64).await?[0].clone();
        let (source, prefix) = (name(&first), "idem:r:done:");
        for from in (1..records).step_by(AT_A_TIME) {
            let to = (from + AT_A_TIME - 1).min(records - 1);
            let words = ["EVAL", COPY, "1", &source, prefix, &from.to_string(), &to.to_string()];
            place.command(database, &words);
        }
        let value = value(place, database, &claimed(&store, "running", 1).await?[0].0);
        let step = records / REPLAYED;
        let keys = (1..REPLAYED).map(|number| format!("{:032}", number * step));
        let retries = keys.map(|key| input::retry_under(&first, &key)).collect::<Result<_, Failure>>()?;
        Ok(Self { database, store, bare, value, retries: Arc::new(retries) })
    }
}
