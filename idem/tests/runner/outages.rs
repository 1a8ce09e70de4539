//! Servers that are killed, paused and slowed while operations run: nothing lost, nothing done twice, every answer right.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem::{
    Attempt, Body, Idempotency, Outcome, Response, Store, StoreErrorKind, postgres::PostgresStore, redis::RedisStore,
};
use test_servers::{PrivatePostgres, PrivateRedis, Proxy, RedisSettings, Settings};
use tokio::{task::JoinSet, time::sleep};

use crate::place::{LIMIT, eventually, never, request};

/// Short, since what an outage cut off is waited for for that long.
const LEASE: Duration = Duration::from_secs(1);
const STORE_TIMEOUT: Duration = Duration::from_millis(500);

/// How many keys are worked on at a time, each by two clients.
const AT_ONCE: usize = 8;

/// A provider that is idempotent itself: one downstream key, one charge.
#[derive(Default)]
struct Provider(Mutex<HashMap<String, usize>>);

impl Provider {
    fn charge(&self, attempt: &Attempt) -> usize {
        let mut charges = self.0.lock().unwrap();
        let next = charges.len();
        *charges.entry(attempt.downstream_key("charge")).or_insert(next)
    }

    fn charges(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

enum Server {
    Postgres(PrivatePostgres),
    Redis(PrivateRedis),
}

impl Server {
    fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::Redis(server) => server.url(),
        }
    }

    fn kill(&self) {
        match self {
            Self::Postgres(server) => server.kill(),
            Self::Redis(server) => server.kill(),
        }
    }

    fn start_again(&self) {
        match self {
            Self::Postgres(server) => server.start_again(),
            Self::Redis(server) => server.start_again(),
        }
    }

    fn pause(&self) {
        match self {
            Self::Postgres(server) => server.pause(),
            Self::Redis(server) => server.pause(),
        }
    }

    fn resume(&self) {
        match self {
            Self::Postgres(server) => server.resume(),
            Self::Redis(server) => server.resume(),
        }
    }

    /// A store that gives up soon, once it is there.
    async fn open(&self, url: &str) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = match self {
            Self::Postgres(_) => Arc::new(PostgresStore::builder(url).timeout(STORE_TIMEOUT).build().unwrap()),
            Self::Redis(_) => Arc::new(RedisStore::builder(url).timeout(STORE_TIMEOUT).build().unwrap()),
        };
        eventually("it is there", || async { store.check().await.is_ok() }).await;
        store
    }
}

/// Asks until it is answered. The charge that the client is told of.
async fn pay(runner: &Idempotency, provider: &Arc<Provider>, key: usize) -> String {
    let paid = async {
        loop {
            let provider = Arc::clone(provider);
            let operation = |attempt: Attempt| async move {
                let charge = provider.charge(&attempt);
                sleep(Duration::from_millis(20)).await;
                Ok::<_, &'static str>(Response::new(201).with_body(charge.to_string()))
            };
            match runner.run(request(&key.to_string()), operation).await {
                Outcome::Ran { reply: response, .. } | Outcome::Replay { response, .. } => {
                    let Body::Kept(body) = response.body() else { panic!("{response:?}") };
                    return String::from_utf8(body.to_vec()).unwrap();
                }
                Outcome::Conflict { .. } | Outcome::Superseded => {}
                Outcome::Store(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
                other => panic!("{key}: {other:?}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, paid).await.expect("it is answered in the end")
}

/// Runs what blocks.
async fn aside(server: &Arc<Server>, work: impl FnOnce(&Server) + Send + 'static) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || work(&server)).await.unwrap();
}

async fn play(server: Server) {
    let proxy = Proxy::start(&server.url());
    let server = Arc::new(server);
    let url = proxy.url_through(&server.url());
    let mut runners = Vec::new();
    for _ in 0..2 {
        let store = server.open(&url).await;
        runners.push(Idempotency::builder(store).lease(LEASE).store_timeout(STORE_TIMEOUT).build().unwrap());
    }
    let (provider, next, is_over) =
        (Arc::<Provider>::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut clients = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (runners, provider, next, is_over) =
            (runners.clone(), Arc::clone(&provider), Arc::clone(&next), Arc::clone(&is_over));
        clients.spawn(async move {
            let mut answers = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                let key = next.fetch_add(1, Ordering::SeqCst);
                let (one, other) = tokio::join!(pay(&runners[0], &provider, key), pay(&runners[1], &provider, key));
                answers.push((key, one, other));
            }
            answers
        });
    }

    let store_errors = || runners.iter().map(|runner| runner.counters().store_errors).sum::<u64>();
    let mut errors = store_errors();
    for trouble in ["paused", "killed", "slow", "paused", "killed"] {
        let answered = next.load(Ordering::SeqCst);
        let some_more = async {
            while next.load(Ordering::SeqCst) < answered + 2 * AT_ONCE {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, some_more).await.expect("it works again");
        match trouble {
            "paused" => {
                aside(&server, Server::pause).await;
                sleep(LEASE + LEASE / 2).await;
                aside(&server, Server::resume).await;
            }
            "killed" => {
                aside(&server, Server::kill).await;
                sleep(LEASE / 2).await;
                aside(&server, Server::start_again).await;
            }
            _ => {
                proxy.delay_replies(STORE_TIMEOUT + STORE_TIMEOUT / 5);
                sleep(LEASE * 2).await;
                proxy.delay_replies(Duration::ZERO);
            }
        }
        assert!(store_errors() > errors, "{trouble}: it was noticed");
        errors = store_errors();
    }
    is_over.store(true, Ordering::SeqCst);
    let answers: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    for runner in &runners {
        assert!(runner.shutdown(LIMIT).await, "everything ends");
    }

    let keys = next.load(Ordering::SeqCst);
    assert_eq!((answers.len(), provider.charges()), (keys, keys), "one charge for each key");
    let calm = server.open(&server.url()).await;
    let calm = Idempotency::builder(calm).build().unwrap();
    for (key, one, other) in answers {
        assert_eq!(one, other, "key {key}: both clients were told the same");
        let replay: Outcome<Response, &str> = calm.run(request(&key.to_string()), never).await;
        let expected = Response::new(201).with_body(one);
        assert!(matches!(&replay, Outcome::Replay { response, .. } if *response == expected), "key {key}: {replay:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_postgres_in_trouble_under_load_loses_nothing_and_nothing_is_done_twice() {
    play(Server::Postgres(PrivatePostgres::start(Settings::new()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_redis_in_trouble_under_load_loses_nothing_and_nothing_is_done_twice() {
    play(Server::Redis(PrivateRedis::start(RedisSettings::new()))).await;
}
