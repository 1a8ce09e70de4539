//! How much memory of the server's a record takes.

use bytes::Bytes;

use crate::{
    Failure, input,
    operations::{claimed, complete},
    redis::{
        bare::Bare,
        place::{MEMORY, Place, names, opened},
    },
    report::{self, Goal, number},
};

/// How many records there are of each kind.
const RECORDS: usize = 50_000;

/// The bytes of a tiny body.
const BODY: usize = 16;

pub(crate) async fn measure(place: &Place) -> Result<(), Failure> {
    report::say(&format!("\nMemory of the server's, {RECORDS} of each, with a key of 32 letters"))?;
    let response = Bytes::from(input::response(BODY).encode());

    let bare = Bare::connect(&place.url(MEMORY)).await?;
    let before = used(place);
    for name in names(&input::claims("memory", RECORDS)?) {
        bare.set(&name, &response).await?;
    }
    tell(&format!("a bare SET PX of the response, {} bytes", response.len()), place, before)?;

    let store = opened(&place.url(MEMORY + 1)).await?;
    let before = used(place);
    let claims = claimed(&store, "memory", RECORDS).await?;
    tell("a record in progress", place, before)?;

    let store = opened(&place.url(MEMORY + 2)).await?;
    let before = used(place);
    for _ in 0..RECORDS / 1_000 {
        let owners = claimed(&store, "memory", 1_000).await?.into_iter().map(|(_, owner)| owner);
        complete(&store, owners.collect(), BODY).await?;
    }
    tell("a record that is done with that response", place, before)?;
    let usage = place.command(MEMORY + 1, &["MEMORY", "USAGE", &names(&[claims[0].0.clone()])[0]]).integer();
    number("MEMORY USAGE of a record in progress", Goal::None, usage as f64, "bytes")
}

/// The memory that the server has in use.
fn used(place: &Place) -> u64 {
    let info = place.command(MEMORY, &["INFO", "memory"]).text();
    let value = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
}

fn tell(what: &str, place: &Place, before: u64) -> Result<(), Failure> {
    let bytes = used(place).saturating_sub(before) as f64 / RECORDS as f64;
    number(what, Goal::None, bytes.round(), "bytes each, as used_memory grew")
}
