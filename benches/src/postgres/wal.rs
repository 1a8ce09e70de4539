//! How much is written ahead.

use std::sync::Arc;

use idem_core::Owner;
use test_servers::query_value;

use crate::{
    Failure,
    postgres::{
        MANY,
        bare::Bare,
        operations::{Claims, Replays, complete, done},
        place::Place,
    },
    report::{self, Goal, number},
    rounds::in_flight,
};

const TABLE: &str = "wal";

pub(crate) async fn measure(place: &Place) -> Result<(), Failure> {
    const REPLAYS: usize = 20_000;
    const CLAIMS: usize = 5_000;
    let store = place.store(TABLE, &place.url).await?;
    let bare = Bare::one(&place.url, &place.table(TABLE), true).await?;
    let replays = done(&store, TABLE, 1000, 512).await?;
    let replays = Arc::new(Replays { store: store.clone(), claims: replays });
    // The first replay of a record may leave a note on its page that its row is committed.
    in_flight(MANY, REPLAYS, Arc::clone(&replays)).await?;

    report::say("\nWrite-ahead log")?;
    for (what, tasks, count) in
        [("a second replay, 1 in flight", 1, REPLAYS / 4), ("a second replay, 64 in flight", MANY, REPLAYS)]
    {
        let before = position(place);
        in_flight(tasks, count, Arc::clone(&replays)).await?;
        tell(what, Goal::Exactly(0.0), place, before, count)?;
    }
    for (what, tasks) in [("a claim, 1 in flight", 1), ("a claim, 64 in flight", MANY)] {
        let claims = Claims::new(&store, TABLE, CLAIMS)?;
        let before = position(place);
        in_flight(tasks, CLAIMS, claims).await?;
        tell(what, Goal::None, place, before, CLAIMS)?;
    }
    let inserts = bare.inserts(TABLE, CLAIMS)?;
    let before = position(place);
    in_flight(1, CLAIMS, inserts).await?;
    tell("a bare INSERT of the same row", Goal::None, place, before, CLAIMS)?;
    let owners: Vec<Owner> =
        super::operations::claimed(&store, TABLE, 1000).await?.into_iter().map(|(_, o)| o).collect();
    let count = owners.len();
    let before = position(place);
    complete(&store, owners, 512).await?;
    tell("a completion with 512 bytes", Goal::None, place, before, count)
}

/// How many bytes were ever written ahead.
pub(crate) fn position(place: &Place) -> u64 {
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8";
    tokio::task::block_in_place(|| query_value(&place.url, sql)).parse().unwrap_or_default()
}

fn tell(what: &str, goal: Goal, place: &Place, before: u64, operations: usize) -> Result<(), Failure> {
    let bytes = position(place) - before;
    number(what, goal, bytes as f64 / operations as f64, &format!("bytes each ({bytes} for {operations})"))
}
