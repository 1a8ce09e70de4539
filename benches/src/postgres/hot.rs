//! Which share of completions touches no index, by how full inserts make a page.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use idem_core::Owner;
use test_servers::{query, query_value};

use crate::{
    Failure,
    operations::{claimed, complete},
    postgres::{place::Place, wal::position},
    report,
    rounds::MANY,
};

const FILLFACTORS: [u32; 5] = [20, 30, 35, 50, 70];
const BODIES: [usize; 3] = [64, 512, 4000];

/// How many claims are open at once, and how many are completed.
const OPEN: usize = 1024;
const COMPLETED: usize = 8192;

pub(crate) async fn measure(place: &Place) -> Result<(), Failure> {
    report::say(&format!("\nCompletions with {OPEN} claims open at once, the oldest completed first"))?;
    report::say(
        "  fillfactor   body   HOT updates   WAL per claim   WAL per completion   heap per row   index per row",
    )?;
    for body in BODIES {
        for fillfactor in FILLFACTORS {
            one(place, body, fillfactor).await?;
        }
    }
    Ok(())
}

async fn one(place: &Place, body: usize, fillfactor: u32) -> Result<(), Failure> {
    let name = format!("hot_{body}_{fillfactor}");
    let (url, table) = (&place.url, place.table(&name));
    let ask = |sql: String| -> Result<f64, Failure> {
        Ok(tokio::task::block_in_place(|| query_value(url, &sql)).parse::<f64>()?)
    };
    let store = place.store(&name, url).await?;
    tokio::task::block_in_place(|| query(url, &format!("ALTER TABLE {table} SET (fillfactor = {fillfactor})")));

    let (mut claim_bytes, mut completion_bytes) = (0, 0);
    let mut open: VecDeque<Owner> = VecDeque::new();
    let (mut claims, mut completions) = (0, 0);
    while completions < COMPLETED {
        let before = position(place);
        open.extend(claimed(&store, "hot", MANY).await?.into_iter().map(|(_, owner)| owner));
        claims += MANY;
        claim_bytes += position(place) - before;
        if open.len() < OPEN {
            continue;
        }
        let before = position(place);
        complete(&store, open.drain(..MANY).collect(), body).await?;
        completions += MANY;
        completion_bytes += position(place) - before;
    }
    // A connection that ends tells the server what it counted.
    drop(store);
    let deadline = Instant::now() + Duration::from_secs(30);
    let count =
        |column: &str| ask(format!("SELECT {column} FROM pg_stat_all_tables WHERE relid = '{table}'::regclass"));
    while count("n_tup_upd")? < completions as f64 {
        if Instant::now() > deadline {
            return Err("the server does not tell how many rows were updated".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let hot = 100.0 * count("n_tup_hot_upd")? / count("n_tup_upd")?;
    let heap = ask(format!("SELECT pg_relation_size('{table}')"))? / claims as f64;
    let index = ask(format!("SELECT pg_indexes_size('{table}')"))? / claims as f64;
    report::say(&format!(
        "  {fillfactor:>10}   {body:>4}   {hot:>9.0} %   {:>13.0}   {:>18.0}   {heap:>12.0}   {index:>13.0}",
        claim_bytes as f64 / claims as f64,
        completion_bytes as f64 / completions as f64,
    ))
}
