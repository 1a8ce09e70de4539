//! How many round trips an operation takes, counted between client and server.

use idem_core::{Answer, Claim, Owner};
use idem_postgres::PostgresStore;
use test_servers::Proxy;

use crate::{
    Failure, input,
    postgres::{operations::complete, place::Place},
    report::{self, Goal, number},
};

const TABLE: &str = "trips";

pub(crate) async fn measure(place: &Place) -> Result<(), Failure> {
    let proxy = tokio::task::block_in_place(|| Proxy::start(&place.url));
    let store = place.store(TABLE, &proxy.url_through(&place.url)).await?;
    // Connections are made, and statements prepared, with the first operations.
    first(&store).await?;

    report::say("\nRound trips")?;
    let before = proxy.requests();
    let (done, _) = first(&store).await?;
    tell("first request: claim and completion", 2, proxy.requests() - before)?;

    let running = input::claim(TABLE)?;
    claim(&store, &running).await?;
    for (what, again, expected) in [
        ("replay", input::retry(&done), "Replay"),
        ("conflict", input::retry(&running), "Conflict"),
        ("reuse", input::reuse(&done)?, "Reuse"),
    ] {
        let before = proxy.requests();
        let answer = claim(&store, &again).await?;
        tell(what, 1, proxy.requests() - before)?;
        let was = match answer {
            Answer::Replay { .. } => "Replay",
            Answer::Conflict { .. } => "Conflict",
            Answer::Reuse { .. } => "Reuse",
            _ => "something else",
        };
        if was != expected {
            return Err(format!("a {what} was answered {was}").into());
        }
    }
    Ok(())
}

/// Claims a new key and completes it.
async fn first(store: &PostgresStore) -> Result<(Claim, Owner), Failure> {
    let new = input::claim(TABLE)?;
    match claim(store, &new).await? {
        Answer::Claimed(grant) => {
            complete(store, vec![grant.owner().clone()], 64).await?;
            Ok((new, grant.owner().clone()))
        }
        other => Err(format!("a first claim was answered {other:?}").into()),
    }
}

async fn claim(store: &PostgresStore, claim: &Claim) -> Result<Answer, Failure> {
    Ok(idem_core::claim(store, claim).await?)
}

fn tell(what: &str, goal: u32, requests: u64) -> Result<(), Failure> {
    number(what, Goal::Exactly(f64::from(goal)), requests as f64, "requests to the server")
}
