//! A store works again by itself when the trouble is over, whatever the trouble was.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use idem_core::Store;
use idem_redis::RedisStore;
use test_servers::{PrivateRedis, RedisCluster, RedisSettings};
use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinHandle, block_in_place},
    time::sleep,
};

use crate::common::{PATIENCE, Place, claim_of, eventually, rounds};

/// Claims of new keys, all the time, by many tasks.
struct Load {
    stops: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(runtime: &tokio::runtime::Handle, store: &RedisStore, name: &str, tasks: usize) -> Self {
        let (stops, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let tasks = (0..tasks)
            .map(|task| {
                let (store, stops, answered) = (store.clone(), Arc::clone(&stops), Arc::clone(&answered));
                let name = format!("{name}-{task}");
                runtime.spawn(async move {
                    for number in 0.. {
                        if stops.load(Ordering::SeqCst) {
                            return;
                        }
                        let claimed = store.claim(&claim_of(&format!("{name}-{number}"))).await;
                        answered.fetch_add(usize::from(claimed.is_ok()), Ordering::SeqCst);
                        sleep(Duration::from_millis(5)).await;
                    }
                })
            })
            .collect();
        Self { stops, answered, tasks }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// Waits until so many more are answered.
    async fn goes_on(&self, what: &str) {
        let before = self.answered();
        eventually(what, async || self.answered() > before + 100).await;
    }

    async fn stop(self) {
        self.stops.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("a task of the load ends");
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime can be built")
}

#[test]
fn a_store_goes_on_when_the_runtime_that_it_was_first_used_in_ends_while_others_use_it() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "runtimes");
    let stays = runtime();
    for round in 0..rounds(6, 40) {
        let store = place.builder_through(&server.url()).timeout(Duration::from_secs(2)).build().unwrap();
        let first = runtime();
        first.block_on(async { store.check().await.expect("it can keep its promise") });
        let load = Load::start(stays.handle(), &store, &format!("{round}"), 4);
        stays.block_on(load.goes_on("it works before"));
        if round % 2 == 0 {
            drop(first)
        } else {
            first.shutdown_background()
        }
        stays.block_on(load.goes_on("it works in the runtime that stays"));
        stays.block_on(load.stop());
    }
}

#[test]
fn a_store_is_used_in_one_runtime_after_the_other() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "one-after-the-other");
    let store = place.builder_through(&server.url()).timeout(Duration::from_secs(2)).build().unwrap();
    for round in 0..rounds(30, 200) {
        let runtime = runtime();
        let claim = claim_of(&format!("k-{round}"));
        runtime.block_on(eventually("it works in this one", async || store.claim(&claim).await.is_ok()));
        runtime.shutdown_background();
    }
}

/// Less than connecting may take on a machine that is busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_a_short_time_limit_works_again_after_pauses_of_the_server_under_load() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "short");
    for limit in [Duration::from_millis(50), Duration::from_millis(150)] {
        let store = place.builder().timeout(limit).build().unwrap();
        let load = Load::start(&tokio::runtime::Handle::current(), &store, &format!("{limit:?}"), 16);
        load.goes_on("it works before").await;
        for _ in 0..rounds(4, 20) {
            server.pause();
            sleep(limit * 17 / 10).await;
            server.resume();
            sleep(limit).await;
        }
        load.goes_on("it works when the pauses are over").await;
        load.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_works_again_on_every_key_of_a_cluster_that_was_rebuilt_under_load() {
    let cluster = RedisCluster::start(3, 1);
    let place = Place::at(&cluster.url(), "rebuilt");
    let limit = Duration::from_secs(2);
    for round in 0..rounds(2, 12) {
        let stores = [0, 1].map(|_| place.builder().timeout(limit).build().unwrap());
        let handle = tokio::runtime::Handle::current();
        let loads = [0, 1].map(|number| Load::start(&handle, &stores[number], &format!("{round}-{number}"), 12));
        for load in &loads {
            load.goes_on("it works before").await;
        }
        let name = |what: &str| place.name(&format!("{what}-{round}"));
        block_in_place(|| {
            let (one, other) = (name("one"), name("other"));
            cluster.failover(&one);
            let to = cluster.owner(&other).port();
            if let Some(to) = cluster.nodes().iter().find(|node| node.port() == to) {
                cluster.move_slot_of(&one, to);
            }
            cluster.failover(&other);
        });
        let killed = cluster.owner(&name("killed"));
        killed.kill();
        sleep(Duration::from_secs(5)).await;
        killed.start_again();
        block_in_place(|| cluster.await_agreement());
        // A key on every node, many times, through either store.
        for (number, store) in stores.iter().enumerate() {
            let begun = Instant::now();
            for key in 0..60 {
                let claim = claim_of(&format!("after-{round}-{number}-{key}"));
                eventually("every key is served", async || store.claim(&claim).await.is_ok()).await;
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
            for key in 0..200 {
                let claim = claim_of(&format!("later-{round}-{number}-{key}"));
                let begun = Instant::now();
                let claimed = store.claim(&claim).await;
                assert!(claimed.is_ok(), "store {number}, key {key}, after {:?}: {claimed:?}", begun.elapsed());
            }
        }
        for load in loads {
            load.goes_on("it works when all is over").await;
            load.stop().await;
        }
    }
}
