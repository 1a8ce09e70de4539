//! What becomes of the ratios when records are many.

use std::sync::Arc;

use idem_core::Claim;
use test_servers::query;

use crate::{
    Failure, input,
    operations::{AnyStore, Expected, again, claims, compare_growth, done},
    postgres::{bare::Bare, place::Place},
    report,
    rounds::{MANY, Plan, Side},
};

const FEW: usize = 10_000;

/// How many records are replayed in turn: of a large table, other ones than fit into a processor's cache.
const REPLAYED: usize = 5_000;

pub(crate) async fn measure(place: &Place, plan: Plan, full: bool) -> Result<(), Failure> {
    let many = if full { 10_000_000 } else { 1_000_000 };
    let (small, large) = (Sized::fill(place, FEW).await?, Sized::fill(place, many).await?);
    // Few enough that the small table stays small.
    let plan = Plan { at_most: 1_000, ..plan };

    report::ratios(&format!("Growth from {FEW} to {many} records, against the growth of the bare statement"))?;
    for tasks in [1, MANY] {
        let plan = plan.of(tasks);
        let (few, plenty) = (small.base(tasks), large.base(tasks));
        let (inserts, more_inserts) = (few.insertions("new", tasks), plenty.insertions("new", tasks));
        let sides = [inserts, small.claims(place, tasks), more_inserts, large.claims(place, tasks)];
        compare_growth(&format!("claim, {tasks} in flight"), plan, sides).await?;
        let sides = [
            few.reads(&small.retries, tasks),
            again(&small.store, &small.retries, Expected::Replay, tasks),
            plenty.reads(&large.retries, tasks),
            again(&large.store, &large.retries, Expected::Replay, tasks),
        ];
        compare_growth(&format!("replay, {tasks} in flight"), plan, sides).await?;
    }
    Ok(())
}

/// A table of so many records, and both ways to it.
struct Sized {
    table: String,
    store: AnyStore,
    retries: Arc<Vec<Claim>>,
    one: Bare,
    pool: Bare,
}

impl Sized {
    /// Makes one record through the store, and the others as its copies under other keys.
    async fn fill(place: &Place, records: usize) -> Result<Self, Failure> {
        let name = format!("growth_{records}");
        let (url, table) = (&place.url, place.table(&name));
        let store = place.store(&name, url).await?;
        let first = done(&store, "done", 1, 64).await?[0].clone();
        let columns = format!(
            "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum), string_agg(CASE attname
                WHEN 'key' THEN 'md5(n::text)' WHEN 'sweep_at' THEN 'sweep_at + n' ELSE quote_ident(attname) END, ', '
                ORDER BY attnum)
            FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
        );
        tokio::task::block_in_place(|| {
            let row = query(url, &columns).remove(0);
            let [Some(columns), Some(values)] = &row[..] else { return Err("the table has no columns") };
            query(
                url,
                &format!(
                    "INSERT INTO {table} ({columns})
                    SELECT {values} FROM (SELECT * FROM {table} LIMIT 1) r, generate_series(1, {}) n",
                    records - 1
                ),
            );
            query(url, &format!("VACUUM ANALYZE {table}"));
            Ok(())
        })?;
        let retries = Arc::new(retries(url, &first, records)?);
        let (one, pool) = (Bare::one(url, &table, true).await?, Bare::pool(url, &table, true)?);
        Ok(Self { table, store, retries, one, pool })
    }

    fn base(&self, tasks: usize) -> &Bare {
        if tasks == 1 { &self.one } else { &self.pool }
    }

    /// Claims through the store; afterwards the table is as large as it was.
    fn claims<'a>(&'a self, place: &'a Place, tasks: usize) -> Side<'a> {
        let claims = claims(&self.store, "new", tasks);
        Box::new(move |count| {
            let run = claims(count);
            Box::pin(async move {
                let took = run.await?;
                tokio::task::block_in_place(|| {
                    query(&place.url, &format!("DELETE FROM {} WHERE scope = 'new'", self.table));
                    query(&place.url, &format!("VACUUM {}", self.table));
                });
                Ok(took)
            })
        })
    }
}

/// Claims of copies from all over the table.
fn retries(url: &str, first: &Claim, records: usize) -> Result<Vec<Claim>, Failure> {
    let step = records / REPLAYED;
    let keys = format!("SELECT md5((n * {step})::text) FROM generate_series(1, {}) n", REPLAYED - 1);
    let keys = tokio::task::block_in_place(|| query(url, &keys));
    keys.into_iter().flatten().flatten().map(|key| input::retry_under(first, &key)).collect()
}
