//! How much is written ahead.

use idem_core::Owner;
use test_servers::query_value;

use crate::{
    Failure, input,
    operations::{Expected, again, claimed, complete, done, first_claims},
    postgres::{bare::Bare, place::Place},
    report::{self, Goal, number},
    rounds::{MANY, in_flight},
};

const TABLE: &str = "wal";

pub(crate) async fn measure(place: &Place) -> Result<(), Failure> {
    const REPLAYS: usize = 20_000;
    const CLAIMS: usize = 5_000;
    let store = place.store(TABLE, &place.url).await?;
    let bare = Bare::one(&place.url, &place.table(TABLE), true).await?;
    let replays = done(&store, TABLE, 1000, 512).await?;
    // The first replay of a record may leave a note on its page that its row is committed.
    again(&store, &replays, Expected::Replay, MANY)(REPLAYS).await?;

    report::say("\nWrite-ahead log")?;
    for (what, tasks, count) in
        [("a second replay, 1 in flight", 1, REPLAYS / 4), ("a second replay, 64 in flight", MANY, REPLAYS)]
    {
        let before = position(place);
        again(&store, &replays, Expected::Replay, tasks)(count).await?;
        tell(what, Goal::Exactly(0.0), place, before, count)?;
    }
    for (what, tasks) in [("a claim, 1 in flight", 1), ("a claim, 64 in flight", MANY)] {
        let claims = first_claims(&store, input::claims(TABLE, CLAIMS)?);
        let before = position(place);
        in_flight(tasks, CLAIMS, claims).await?;
        tell(what, Goal::None, place, before, CLAIMS)?;
    }
    let inserts = bare.inserts(TABLE, CLAIMS)?;
    let before = position(place);
    in_flight(1, CLAIMS, inserts).await?;
    tell("a bare INSERT of the same row", Goal::None, place, before, CLAIMS)?;
    let owners: Vec<Owner> = claimed(&store, TABLE, 1000).await?.into_iter().map(|(_, owner)| owner).collect();
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
