//! Clients that want operations done, each once, while servers fail; and what became of that.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use idem_core::{Answer, Fenced, Grant, Response, Retention, State, Store, StoreErrorKind};
use idem_redis::RedisStore;
use tokio::{task::JoinHandle, time::sleep};

use crate::common::{PATIENCE, claim_of, key, scope};

/// Short, so that what was cut off is taken over while the test lasts.
const LEASE: Duration = Duration::from_millis(1_500);

/// One run of an operation.
#[derive(Clone, Debug)]
pub(crate) struct RunOfOne {
    pub(crate) number: u32,
    pub(crate) is_repeat: bool,
    body: Vec<u8>,
    pub(crate) claimed: Instant,
    /// When its completion was answered as written.
    pub(crate) completed: Option<Instant>,
}

/// What clients have done so far.
#[derive(Default)]
pub(crate) struct Ledger {
    runs: Mutex<HashMap<String, Vec<RunOfOne>>>,
    stop: AtomicBool,
    unavailable: AtomicUsize,
    slowest: Mutex<Duration>,
    plan: Plan,
}

/// What the operations are.
#[derive(Clone)]
pub(crate) struct Plan {
    /// How many pairs of clients there are.
    pub(crate) pairs: usize,
    /// What an operation is called, given a text that no other one has.
    pub(crate) name: Arc<dyn Fn(&str) -> String + Send + Sync>,
    /// Of how many first attempts one dies, and is taken over; none if 0.
    pub(crate) one_dies_of: usize,
}

impl Plan {
    pub(crate) fn pairs(pairs: usize) -> Self {
        Self { pairs, name: Arc::new(str::to_owned), one_dies_of: 0 }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::pairs(1)
    }
}

/// What became of it.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) keys: usize,
    pub(crate) unavailable: usize,
    /// Runs after which another one was a first attempt: their record was lost.
    pub(crate) lost_claims: usize,
    /// Runs whose completion was answered, and after which another one was a repeat.
    pub(crate) lost_completions: usize,
    /// Runs whose completion was never answered, and that were taken over: no loss.
    pub(crate) lapses: usize,
    /// Of those that were lost, the ones that ran when the failover was over.
    pub(crate) late: usize,
    /// How long the slowest claim or completion took, with whatever answer.
    pub(crate) slowest: Duration,
}

pub(crate) struct Clients {
    pub(crate) ledger: Arc<Ledger>,
    tasks: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Pairs of clients that want the same operations, one after the other, until they are stopped.
    pub(crate) fn start(stores: &[RedisStore; 2], plan: Plan) -> Self {
        let ledger = Arc::new(Ledger { plan: plan.clone(), ..Ledger::default() });
        let mut tasks = Vec::new();
        for pair in 0..plan.pairs {
            for store in stores {
                let (store, ledger) = (store.clone(), Arc::clone(&ledger));
                tasks.push(tokio::spawn(async move {
                    for operation in 0.. {
                        if ledger.stop.load(Ordering::SeqCst) {
                            return;
                        }
                        let name = (ledger.plan.name)(&format!("{pair}-{operation}"));
                        ledger.until_done(&store, &name).await;
                    }
                }));
            }
        }
        Self { ledger, tasks }
    }

    /// Stops them, has every operation asked for once more, and looks at every record.
    pub(crate) async fn stop(self, store: &RedisStore, over: Instant) -> Tally {
        self.ledger.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        let names: Vec<String> = self.ledger.runs.lock().unwrap().keys().cloned().collect();
        for name in &names {
            self.ledger.until_done(store, name).await;
        }
        let mut tally = Tally { keys: names.len(), ..Tally::default() };
        tally.unavailable = self.ledger.unavailable.load(Ordering::SeqCst);
        tally.slowest = *self.ledger.slowest.lock().unwrap();
        let runs = self.ledger.runs.lock().unwrap().clone();
        for (name, runs) in runs {
            let found = store.read(&scope(), &key(&name)).await.unwrap().unwrap().record;
            let State::Done(response) = &found.state else { panic!("{name}: {found:?}") };
            // What is recorded is what its own attempt said.
            assert_eq!(body_of(response), found.token.as_bytes().to_vec(), "{name}: a result was written over");
            assert!(runs.iter().any(|run| run.body == body_of(response)), "{name}: nobody ran it");
            for two in runs.windows(2) {
                let [earlier, later] = two else { continue };
                match (later.number, earlier.completed) {
                    (1, _) => {
                        assert!(!later.is_repeat);
                        tally.lost_claims += 1;
                    }
                    (_, Some(_)) => tally.lost_completions += 1,
                    (_, None) => tally.lapses += 1,
                }
                if later.number > 1 {
                    assert!(later.is_repeat, "{name}: the second run could not tell");
                }
                // Only what was written before the failover was over may be lost.
                let is_lost = later.number == 1 || earlier.completed.is_some();
                tally.late += usize::from(is_lost && earlier.claimed > over);
            }
        }
        tally
    }
}

impl Ledger {
    /// As a client that wants an operation done: asks until it has the answer, and runs the operation when it is told to.
    async fn until_done(&self, store: &RedisStore, name: &str) {
        let begun = Instant::now();
        let mut claim = claim_of(name).with_lease(LEASE).with_retention(Retention::new(Duration::from_secs(600)));
        loop {
            assert!(begun.elapsed() < PATIENCE, "{name} never ends");
            match self.timed(idem_core::claim(store, &claim)).await {
                Ok(Answer::Claimed(grant) | Answer::TakenOver(grant)) => {
                    if self.run(store, name, &grant).await {
                        return;
                    }
                    claim = claim_of(name).with_lease(LEASE);
                }
                Ok(Answer::Replay { .. }) => return,
                Ok(Answer::Conflict { .. }) => sleep(Duration::from_millis(5)).await,
                Ok(Answer::Superseded) => claim = claim_of(name).with_lease(LEASE),
                Ok(other) => panic!("{name}: {other:?}"),
                Err(error) => self.is_unavailable(&error).await,
            }
        }
    }

    /// Runs it and says so. Whether the result is recorded.
    async fn run(&self, store: &RedisStore, name: &str, grant: &Grant) -> bool {
        let body = grant.owner().attempt().token.as_bytes().to_vec();
        let run = RunOfOne {
            number: grant.number(),
            is_repeat: grant.is_repeat(),
            body: body.clone(),
            claimed: Instant::now(),
            completed: None,
        };
        let at = {
            let mut runs = self.runs.lock().unwrap();
            let runs = runs.entry(name.into()).or_default();
            runs.push(run);
            runs.len() - 1
        };
        let dying = self.plan.one_dies_of;
        if dying > 0 && grant.number() == 1 && usize::from(grant.owner().attempt().token.as_bytes()[15]) % dying == 0 {
            return false;
        }
        let response = Response::new(201).with_body(body);
        loop {
            let retention = Retention::new(Duration::from_secs(600));
            match self.timed(store.complete(grant.owner(), &response, retention)).await {
                Ok(Fenced::Written(recorded)) => {
                    assert_eq!(recorded, response, "{name}: another's result was taken for this one's");
                    self.runs.lock().unwrap().get_mut(name).unwrap()[at].completed = Some(Instant::now());
                    return true;
                }
                Ok(Fenced::Superseded) => return false,
                Err(error) => self.is_unavailable(&error).await,
            }
        }
    }

    async fn timed<T>(&self, operation: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let answer = operation.await;
        let mut slowest = self.slowest.lock().unwrap();
        *slowest = slowest.max(begun.elapsed());
        answer
    }

    async fn is_unavailable(&self, error: &idem_core::StoreError) {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        self.unavailable.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(20)).await;
    }

    pub(crate) fn keys(&self) -> usize {
        self.runs.lock().unwrap().len()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.runs.lock().unwrap().keys().cloned().collect()
    }
}

fn body_of(response: &Response) -> Vec<u8> {
    match response.body() {
        idem_core::Body::Kept(body) => body.to_vec(),
        other => panic!("{other:?}"),
    }
}
