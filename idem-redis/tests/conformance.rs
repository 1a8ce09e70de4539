//! The conformance suite: what every store must do, on a single server and on a real cluster, with a clock that stands
//! still and by the server's own.

use std::{env, sync::OnceLock, time::Duration};

use idem_conformance::{Harness, Place};
use idem_core::Store;
use idem_redis::{Builder, OpenError, RedisStore};
use test_servers::{PrivateRedis, RedisCluster, redis};

mod single {
    use super::*;

    pub(super) fn url() -> String {
        redis().url().to_owned()
    }

    idem_conformance::suite!(standing_still(url));
}

mod cluster {
    use super::*;

    fn url() -> String {
        three_masters().url()
    }

    idem_conformance::suite!(standing_still(url));
}

mod by_the_servers_own_clock {
    use super::*;

    /// A first claim's instants are what the client tells, and count from when the server gets to it: on a machine that
    /// is busy with other tests, that much later. How long leases and retentions last is exact.
    const RESOLUTION: Duration = Duration::from_secs(1);

    async fn open(place: &Place) -> Result<RedisStore, OpenError> {
        builder(&theirs_or(single::url), place).build()
    }

    idem_conformance::suite!(
        shared(Harness::new(async |place: Place| open(&place).await), single::url).real_time().resolution(RESOLUTION)
    );
}

fn standing_still(url: fn() -> String) -> Harness {
    let open = async move |place: Place| builder(&theirs_or(url), &place).clock(place.clock()).build();
    shared(Harness::new(open), url)
}

fn shared(harness: Harness, url: fn() -> String) -> Harness {
    harness.durable().shared_between_processes([(URL, theirs_or(url)), (PREFIX, prefix().to_owned())])
}

// Tell another process, which the suite starts, where the records of this one are.
const URL: &str = "IDEM_REDIS_CONFORMANCE_URL";
const PREFIX: &str = "IDEM_REDIS_CONFORMANCE_PREFIX";

/// The server of the process that started this one, if one did.
fn theirs_or(url: fn() -> String) -> String {
    env::var(URL).unwrap_or_else(|_| url())
}

fn builder(url: &str, place: &Place) -> Builder {
    // Patient, on a machine that is shared with other work.
    let prefix = format!("{}{}", prefix(), place.name());
    RedisStore::builder(url).prefix(prefix).timeout(Duration::from_secs(30))
}

/// What this process's keys begin with, on a server that others may use too.
fn prefix() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(|| env::var(PREFIX).unwrap_or_else(|_| redis().prefix()))
}

fn three_masters() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start(3, 0))
}

/// What the suite leaves out for each of its handles.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "whoever reads the output must know what it was")]
async fn the_check_finds_nothing_wrong_where_the_suite_runs() {
    for url in [redis().url(), &three_masters().url()] {
        let store = RedisStore::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        store.check().await.unwrap_or_else(|error| panic!("{url}: {error}"));
    }
    let (major, minor, patch) = redis().version();
    println!("the suite runs on {} {major}.{minor}.{patch}", redis().server_name());
}

#[tokio::test]
async fn records_are_on_every_master_of_the_cluster() {
    let cluster = three_masters();
    let place = prefix();
    let store = RedisStore::builder(&cluster.url()).prefix(format!("{place}spread")).connect().await.unwrap();
    let fingerprint = idem_core::Fingerprint::builder().part("body", "b").build().unwrap();
    for number in 0..50_u8 {
        // With what would all be one slot if it were taken as it is.
        let key = idem_core::Key::new(format!("{{same}}{number}")).unwrap();
        let token = idem_core::Token::from_bytes([number + 1; 16]);
        let claim = idem_core::Claim::new(idem_core::Scope::global(), key, token, fingerprint.clone());
        idem_core::claim(&store, &claim).await.unwrap();
    }
    let kept = |node: &PrivateRedis| node.command(&["DBSIZE"]).integer();
    assert!(cluster.nodes().iter().all(|node| kept(node) > 0));
}
