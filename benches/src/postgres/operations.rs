//! What is done on both sides, each checked for its answer.

use std::sync::Arc;

use idem_core::{Answer, Claim, Fenced, Owner, Response, Retention, Store};
use idem_postgres::PostgresStore;

use crate::{
    Failure, input,
    postgres::{
        MANY,
        bare::{Bare, NewRow},
    },
    rounds::{Operation, in_flight},
};

/// First claims, one for each operation.
pub(crate) struct Claims {
    store: PostgresStore,
    claims: Vec<Claim>,
}

/// Claims of keys that are done, over and over.
pub(crate) struct Replays {
    pub(crate) store: PostgresStore,
    pub(crate) claims: Vec<Claim>,
}

/// Bare inserts, one for each operation.
pub(crate) struct Inserts {
    pub(crate) bare: Bare,
    pub(crate) rows: Vec<NewRow>,
}

/// Bare reads, over and over.
pub(crate) struct Reads {
    pub(crate) bare: Bare,
    pub(crate) keys: Vec<(String, String)>,
}

/// Completions, one for each operation.
pub(crate) struct Completions {
    store: PostgresStore,
    work: Vec<(Owner, Response)>,
}

impl Claims {
    pub(crate) fn new(store: &PostgresStore, scope: &str, count: usize) -> Result<Arc<Self>, Failure> {
        let claims = (0..count).map(|_| input::claim(scope)).collect::<Result<_, Failure>>()?;
        Ok(Arc::new(Self { store: store.clone(), claims }))
    }
}

impl Operation for Claims {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        match idem_core::claim(&self.store, &self.claims[number]).await? {
            Answer::Claimed(_) => Ok(()),
            other => Err(format!("a first claim was answered {other:?}").into()),
        }
    }
}

impl Operation for Replays {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        match idem_core::claim(&self.store, &self.claims[number % self.claims.len()]).await? {
            Answer::Replay { .. } => Ok(()),
            other => Err(format!("a claim of what is done was answered {other:?}").into()),
        }
    }
}

impl Operation for Inserts {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        match self.bare.insert(&self.rows[number]).await? {
            1 => Ok(()),
            rows => Err(format!("an insert of a new key wrote {rows} rows").into()),
        }
    }
}

impl Operation for Reads {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        let (scope, key) = &self.keys[number % self.keys.len()];
        let row = self.bare.read(scope, key).await?;
        let response: Option<&[u8]> = row.try_get("response")?;
        Response::decode(response.ok_or("a row that is done has no response")?.to_vec())?;
        Ok(())
    }
}

impl Operation for Completions {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        let (owner, response) = &self.work[number];
        match self.store.complete(owner, response, Retention::default()).await? {
            Fenced::Written(_) => Ok(()),
            Fenced::Superseded => Err("the completion of a fresh claim was superseded".into()),
        }
    }
}

/// Claims so many new keys, 64 at a time.
pub(crate) async fn claimed(store: &PostgresStore, scope: &str, count: usize) -> Result<Vec<(Claim, Owner)>, Failure> {
    let claims: Vec<Claim> = (0..count).map(|_| input::claim(scope)).collect::<Result<_, Failure>>()?;
    let mut owners = Vec::with_capacity(count);
    for group in claims.chunks(MANY) {
        let answers = group.iter().map(|claim| idem_core::claim(store, claim));
        for (claim, answer) in group.iter().zip(futures_util::future::try_join_all(answers).await?) {
            match answer {
                Answer::Claimed(grant) => owners.push((claim.clone(), grant.owner().clone())),
                other => return Err(format!("a first claim was answered {other:?}").into()),
            }
        }
    }
    Ok(owners)
}

/// Completes them with bodies of so many bytes, 64 at a time.
pub(crate) async fn complete(store: &PostgresStore, owners: Vec<Owner>, body: usize) -> Result<(), Failure> {
    let count = owners.len();
    let work = owners.into_iter().map(|owner| (owner, input::response(body))).collect();
    in_flight(MANY, count, Arc::new(Completions { store: store.clone(), work })).await?;
    Ok(())
}

/// Keys that are done, with a retry of each.
pub(crate) async fn done(store: &PostgresStore, scope: &str, count: usize, body: usize) -> Result<Vec<Claim>, Failure> {
    let (claims, owners): (Vec<Claim>, Vec<Owner>) = claimed(store, scope, count).await?.into_iter().unzip();
    complete(store, owners, body).await?;
    Ok(claims.iter().map(input::retry).collect())
}
