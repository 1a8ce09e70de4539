//! Clients that compete for keys through trouble.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use idem_core::{Answer, Claim, Fenced, Response, Store, StoreErrorKind, Token};
use idem_postgres::PostgresStore;
use tokio::task::JoinHandle;

use crate::common::{PATIENCE, claim, claim_of, granted, retention, word};

/// The tokens that were told that they own a key.
type Owners = BTreeMap<String, BTreeSet<[u8; 16]>>;

/// Pairs of clients, each pair claiming and completing one key after the other, through two stores.
pub(crate) struct Rivals {
    stop: Arc<AtomicBool>,
    pairs: Vec<JoinHandle<Owners>>,
}

impl Rivals {
    pub(crate) fn start(stores: &[PostgresStore; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let pair = |number| {
            let (stores, stop) = (stores.clone(), Arc::clone(&stop));
            tokio::spawn(async move { rivals(&stores, &stop, number).await })
        };
        Self { stop: Arc::clone(&stop), pairs: (0..8).map(pair).collect() }
    }

    /// Ends the competition. Each key had one owner, whose completion is what `store` replays.
    pub(crate) async fn assert_each_key_has_one_owner(self, store: &PostgresStore) {
        self.stop.store(true, Ordering::SeqCst);
        let mut keys = 0;
        for owners in join_all(self.pairs).await {
            for (name, told) in owners.unwrap() {
                keys += 1;
                assert_eq!(told.len(), 1, "owners of {name}");
                let token = Token::from_bytes(*told.first().unwrap());
                match claim(store, &claim_of(&name)).await {
                    Answer::Replay { response, .. } => assert_eq!(response, answer_of(token), "{name}"),
                    other => panic!("{name} was completed, and is {other:?}"),
                }
            }
        }
        assert!(keys > 40, "{keys} keys");
    }
}

/// Repeats a claim with its token until it is answered, as the runner does; nothing but unavailable may come between.
async fn claim_through_trouble(store: &PostgresStore, claim: &Claim) -> Answer {
    let begun = Instant::now();
    loop {
        match idem_core::claim(store, claim).await {
            Ok(answer) => return answer,
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                assert!(begun.elapsed() < PATIENCE, "no recovery: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn complete_through_trouble(store: &PostgresStore, claim: &Claim, answer: Answer, with: &Response) {
    let owner = granted(answer).owner().clone();
    assert_eq!(owner.key(), claim.key());
    let begun = Instant::now();
    loop {
        match store.complete(&owner, with, retention()).await {
            Ok(Fenced::Written(recorded)) => return assert_eq!(recorded, *with),
            Ok(Fenced::Superseded) => panic!("{:?} has two owners", claim.key()),
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                assert!(begun.elapsed() < PATIENCE, "no recovery: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn answer_of(token: Token) -> Response {
    Response::new(200).with_body(token.as_bytes().to_vec())
}

/// Two clients for each key until told to stop.
async fn rivals(stores: &[PostgresStore; 2], stop: &AtomicBool, pair: usize) -> Owners {
    let mut owners = Owners::new();
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) {
        let name = format!("pair {pair} round {round}");
        let told = Mutex::new(BTreeSet::new());
        let one = async |store: &PostgresStore| {
            let begun = Instant::now();
            loop {
                let claim = claim_of(&name);
                let answer = claim_through_trouble(store, &claim).await;
                match word(&answer) {
                    "Claimed" => {
                        told.lock().unwrap().insert(*claim.token().as_bytes());
                        complete_through_trouble(store, &claim, answer, &answer_of(claim.token())).await;
                    }
                    "Replay" => return,
                    "Conflict" => {
                        assert!(begun.elapsed() < PATIENCE, "{name} stays in progress");
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    other => panic!("{other}"),
                }
            }
        };
        futures_util::future::join(one(&stores[0]), one(&stores[1])).await;
        owners.insert(name, told.into_inner().unwrap());
        round += 1;
    }
    owners
}
