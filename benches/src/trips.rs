//! How many round trips an operation takes, counted between client and server.

use std::time::Duration;

use idem_core::{Answer, Claim, Owner};
use test_servers::Proxy;

use crate::{
    Failure, input,
    operations::{AnyStore, complete},
    report::{self, Goal, number},
};

const SCOPE: &str = "trips";

/// How many round trips each may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goals {
    pub(crate) conflict: u32,
    /// None is not measured.
    pub(crate) takeover: Option<u32>,
}

/// Counts what a store sends that is reached through a proxy.
pub(crate) async fn measure(store: &AnyStore, proxy: &Proxy, goals: Goals) -> Result<(), Failure> {
    // Connections are made, and statements and scripts made known, with the first operations of each kind.
    round(store, proxy, goals).await?;
    report::say("\nRound trips")?;
    for (what, goal, requests) in round(store, proxy, goals).await? {
        number(what, Goal::Exactly(f64::from(goal)), requests as f64, "requests to the server")?;
    }
    Ok(())
}

/// One operation of each kind: what it is, how many requests it may take, and how many it took.
async fn round(store: &AnyStore, proxy: &Proxy, goals: Goals) -> Result<Vec<(&'static str, u32, u64)>, Failure> {
    let before = proxy.requests();
    let (done, _) = first(store).await?;
    let mut counted = vec![("first request: claim and completion", 2, proxy.requests() - before)];

    let running = input::claim(SCOPE)?;
    claim(store, &running).await?;
    let mut again = vec![
        ("replay", "Replay", input::retry(&done), 1),
        ("conflict", "Conflict", input::retry(&running), goals.conflict),
        ("reuse", "Reuse", input::reuse(&done)?, 1),
    ];
    if let Some(takeover) = goals.takeover {
        let dead = input::claim(SCOPE)?.with_lease(Duration::from_millis(1));
        claim(store, &dead).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        again.push(("takeover", "TakenOver", input::retry(&dead), takeover));
    }
    for (what, expected, again, goal) in again {
        let before = proxy.requests();
        let answer = claim(store, &again).await?;
        counted.push((what, goal, proxy.requests() - before));
        let was = match answer {
            Answer::Replay { .. } => "Replay",
            Answer::Conflict { .. } => "Conflict",
            Answer::Reuse { .. } => "Reuse",
            Answer::TakenOver(_) => "TakenOver",
            _ => "something else",
        };
        if was != expected {
            return Err(format!("a {what} was answered {was}").into());
        }
    }
    Ok(counted)
}

/// Claims a new key and completes it.
async fn first(store: &AnyStore) -> Result<(Claim, Owner), Failure> {
    let new = input::claim(SCOPE)?;
    match claim(store, &new).await? {
        Answer::Claimed(grant) => {
            complete(store, vec![grant.owner().clone()], 64).await?;
            Ok((new, grant.owner().clone()))
        }
        other => Err(format!("a first claim was answered {other:?}").into()),
    }
}

async fn claim(store: &AnyStore, claim: &Claim) -> Result<Answer, Failure> {
    Ok(idem_core::claim(&**store, claim).await?)
}
