//! Setting a store up: what is refused at once, what the start-up check finds, and TLS.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    io::Write,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use idem_core::{Store, StoreErrorKind};
use idem_redis::{OpenError, RedisStore};
use test_servers::{PrivateRedis, RedisCluster, RedisSentinel, RedisSettings, redis};

use crate::common::{PATIENCE, claim_of, own};

/// Connects, and expects the check to refuse it.
async fn refused(url: &str) -> String {
    match RedisStore::builder(url).connect().await {
        Err(OpenError::Store(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
            error.to_string()
        }
        Err(error) => panic!("it was refused for another reason: {error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[tokio::test]
async fn a_url_that_can_not_be_read_is_refused_without_being_shown() {
    for url in [
        "hunter2",
        "http://u:hunter2@h",
        "redis://u:hunter2@h:port",
        "redis://u:hunter2@h/database",
        "rediss://u:hunter2@h?sslrootcert=%zz",
        "redis-sentinel://u:hunter2@h",
        "redis-cluster://u:hunter2@h?node=hunter2",
    ] {
        let error = RedisStore::builder(url).build().map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Url), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let builder = RedisStore::builder("redis://u:hunter2@h");
    assert!(!format!("{builder:?} {:?}", builder.clone().build().unwrap()).contains("hunter2"));
}

#[tokio::test]
async fn settings_that_can_not_be_are_refused_when_it_is_built() {
    let built = RedisStore::builder("redis://h").timeout(Duration::ZERO).build();
    assert!(matches!(built, Err(OpenError::NoTime)));
    let built = RedisStore::builder("redis://h").prefix("a{b}").build();
    assert!(matches!(built, Err(OpenError::Prefix { .. })));
    let built = RedisStore::builder("rediss://h").ca_file("/no/such/file").build();
    let Err(error @ OpenError::Tls { .. }) = built else { panic!("it was built") };
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    // Whoever names an authority believes that there is TLS.
    for built in [
        RedisStore::builder("redis://h").ca_file("/ca.pem").build(),
        RedisStore::builder("redis-cluster://h?sslrootcert=/ca.pem").build(),
    ] {
        let Err(error @ OpenError::Tls { .. }) = built else { panic!("it was built") };
        assert!(error.to_string().contains("rediss://"), "{error}");
    }
    let built = RedisStore::builder("redis://u:hunter2@h?sslrotcert=hunter2").build();
    let Err(error @ OpenError::Parameter { .. }) = built else { panic!("it was built") };
    assert!(error.to_string().contains("sslrotcert") && !format!("{error} {error:?}").contains("hunter2"), "{error}");
    let built = RedisStore::builder("redis-cluster://h/5").build();
    assert!(matches!(built, Err(OpenError::ClusterDatabase)));
    assert!(RedisStore::builder("redis-cluster://h/0?").build().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_is_the_urls_or_the_builders_which_counts_more() {
    let (one, other) = (redis().prefix(), redis().prefix());
    let url = format!("{}?prefix={one}", redis().url());
    let records = |prefix: &str| redis().command(&["EXISTS", &format!("{prefix}:r:tenant-7:k")]).integer();
    own(&RedisStore::connect(&url).await.unwrap(), &claim_of("k")).await;
    assert_eq!((records(&one), records(&other)), (1, 0));
    own(&RedisStore::builder(&url).prefix(&other).connect().await.unwrap(), &claim_of("k")).await;
    assert_eq!((records(&one), records(&other)), (1, 1));
    let built = RedisStore::builder(&format!("{}?prefix=a%7Bb%7D", redis().url())).build();
    assert!(matches!(built, Err(OpenError::Prefix { .. })));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_the_error_says_why() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://u:hunter2@127.0.0.1:{port}");
    let connected = RedisStore::builder(&url).timeout(Duration::from_millis(500)).connect().await;
    let Err(OpenError::Store(error)) = connected else { panic!("it was connected") };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let shown = format!("{error} {error:?}");
    assert!(shown.to_lowercase().contains("refused") && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_a_setting_to_mend_and_never_shown() {
    let server = PrivateRedis::start(RedisSettings::new().password("right password"));
    let store = RedisStore::connect(&server.url()).await.unwrap();
    own(&store, &claim_of("k")).await;
    let wrong = format!("redis://default:hunter2@127.0.0.1:{}", server.port());
    let shown = refused(&wrong).await;
    assert!(shown.contains("refuses the user or password") && !shown.contains("hunter2"), "{shown}");
    let none = format!("redis://127.0.0.1:{}", server.port());
    let shown = refused(&none).await;
    assert!(shown.contains("refuses the user or password"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_are_missing_are_named() {
    const LIMIT: Duration = Duration::from_secs(10);
    let rules = "~idem:* &idem:* +set +get +del +pttl +eval +evalsha +scan +publish +subscribe +info +time +wait";
    let without: Vec<String> = rules
        .split(' ')
        .map(|right| rules.split(' ').filter(|other| *other != right).collect::<Vec<_>>().join(" "))
        .collect();
    let settings = RedisSettings::new().user("all", "pw", rules);
    let settings = settings.user("other_keys", "pw", &rules.replace("~idem:*", "~other:*"));
    let settings = settings.user("numbered", "pw", &format!("{rules} +select"));
    let settings = without
        .iter()
        .enumerate()
        .fold(settings, |settings, (number, rules)| settings.user(&format!("without_{number}"), "pw", rules));
    let server = PrivateRedis::start(settings);
    let _replica = server.replica();
    let url = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}", server.port());
    let builder = |user: &str| RedisStore::builder(&url(user)).min_replicas(NonZeroU32::MIN).timeout(LIMIT);
    let works = async |store: RedisStore| {
        let owner = own(&store, &claim_of("k")).await;
        store.wait(&common::scope(), &common::key("k"), owner.attempt(), Duration::ZERO).await.unwrap();
        store.release(&owner).await.unwrap();
        common::complete(&store, &own(&store, &claim_of("k")).await).await;
        store.lapsed(None, NonZeroUsize::MIN).await.unwrap();
        assert_eq!(store.purge(&common::scope(), NonZeroUsize::MIN).await.unwrap(), 1);
    };
    works(builder("all").connect().await.unwrap()).await;
    works(RedisStore::connect(&format!("{}/3", url("numbered"))).await.unwrap()).await;
    for user in (0..without.len()).map(|number| format!("without_{number}")).chain(["other_keys".into()]) {
        let Err(OpenError::Store(error)) = builder(&user).connect().await else {
            panic!("{user} was connected: {:?}", without)
        };
        let shown = error.to_string();
        if user == "without_10" {
            // The client does not tell what the server says to this one.
            assert!(shown.contains("did not come back") && shown.contains("+subscribe"), "{user}: {shown}");
            continue;
        }
        assert_eq!(error.kind(), StoreErrorKind::Configuration, "{user}: {shown}");
        assert!(shown.contains("lacks rights"), "{user}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_the_rights_are_tried_on_every_master() {
    let cluster = RedisCluster::start(3, 0);
    let rules = "on >pw ~idem:* &idem:* +set +get +del +pttl +eval +evalsha +scan +publish +subscribe +info +time +wait \
                 +cluster +asking";
    for (number, node) in cluster.nodes().iter().enumerate() {
        let rules = if number == 2 { rules.replace("+pttl ", "") } else { rules.into() };
        let words: Vec<&str> = ["ACL", "SETUSER", "app"].into_iter().chain(rules.split(' ')).collect();
        node.command(&words);
    }
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://app:pw@");
    let shown = refused(&url).await;
    assert!(shown.contains("lacks rights"), "{shown}");
    cluster.nodes()[2].command(&["ACL", "SETUSER", "app", "+pttl"]);
    let store = RedisStore::connect(&url).await.unwrap();
    for number in 0..20 {
        let owner = own(&store, &claim_of(&format!("k-{number}"))).await;
        common::complete(&store, &owner).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_is_refused_where_the_url_is_of_a_single_server() {
    let cluster = RedisCluster::start(3, 0);
    for node in cluster.nodes() {
        let shown = refused(&node.url()).await;
        assert!(shown.contains("redis-cluster://"), "{shown}");
    }
}

// case 024
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_is_refused_unless_that_is_accepted() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = PrivateRedis::start(RedisSettings::new().set("maxmemory-policy", policy));
        let shown = refused(&server.url()).await;
        assert!(shown.contains(policy) && shown.contains("Builder::accept_eviction"), "{shown}");
        let store = RedisStore::builder(&server.url()).accept_eviction().connect().await.unwrap();
        // A record that was evicted does not come back by the completion of its owner.
        let owner = own(&store, &claim_of("k")).await;
        server.command(&["DEL", "idem:r:tenant-7:k"]);
        let completed = store.complete(&owner, &common::response(), common::retention()).await.unwrap();
        assert_eq!(completed, idem_core::Fenced::Superseded);
        assert!(common::record(&store, "k").await.is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_refused() {
    let primary = PrivateRedis::start(RedisSettings::new());
    let replica = primary.replica();
    let shown = refused(&replica.url()).await;
    assert!(shown.contains("is a replica") && shown.contains("connect to the primary"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_sentinels_the_primary_is_found() {
    let sentinel = RedisSentinel::start();
    let store = RedisStore::builder(&sentinel.url()).timeout(PATIENCE).connect().await.unwrap();
    own(&store, &claim_of("k")).await;
    let primary = sentinel.primary();
    assert!(primary.command(&["PTTL", "idem:r:tenant-7:k"]).integer() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_says_what_has_changed_since_the_store_was_opened_and_leaves_nothing_behind() {
    let server = PrivateRedis::start(RedisSettings::new());
    let store = RedisStore::connect(&server.url()).await.unwrap();
    store.check().await.unwrap();
    assert_eq!(server.command(&["DBSIZE"]).integer(), 0);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_takes_a_certificate_of_a_trusted_authority_for_the_host_of_the_url_and_no_other() {
    let right = PrivateRedis::start(RedisSettings::new().password("pw").tls("localhost"));
    let wrong = PrivateRedis::start(RedisSettings::new().tls("elsewhere.example"));
    let limit = Duration::from_secs(5);
    let open = async |url: &str, ca: &PrivateRedis| {
        RedisStore::builder(url).ca_file(ca.ca_file()).timeout(limit).connect().await
    };
    let store = open(&right.localhost_tls_url(), &right).await.unwrap();
    own(&store, &claim_of("k")).await;
    let by_url = format!("{}?sslrootcert={}", right.localhost_tls_url(), right.ca_file().display());
    RedisStore::connect(&by_url).await.unwrap();
    // A host that the certificate is not for; an authority that nobody trusts; one that the system does not know.
    for (url, ca) in
        [(right.tls_url(), &right), (wrong.localhost_tls_url(), &wrong), (right.localhost_tls_url(), &wrong)]
    {
        let Err(OpenError::Store(error)) = open(&url, ca).await else { panic!("{url} was connected") };
        assert!(error.to_string().contains("certificate"), "{url}: {error}");
    }
    assert!(RedisStore::builder(&right.localhost_tls_url()).timeout(limit).connect().await.is_err());
}

/// That a URL is refused for the certificate of what it names.
async fn assert_not_trusted(url: &str, ca_file: PathBuf) {
    let opened = RedisStore::builder(url).ca_file(ca_file).timeout(Duration::from_secs(2)).connect().await;
    let Err(OpenError::Store(error)) = opened else { panic!("{url} was connected") };
    assert!(error.to_string().contains("certificate"), "{url}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_cluster_are_reached_through_tls_and_must_be_for_the_host_of_the_url() {
    let cluster = RedisCluster::start_with(RedisSettings::new().password("pw").tls("localhost"), 3, 1);
    let ca_file = cluster.nodes()[0].ca_file();
    let builder = |url: &str| RedisStore::builder(url).ca_file(&ca_file).timeout(PATIENCE);
    let store = builder(&cluster.localhost_tls_url()).connect().await.unwrap();
    let mut owners = Vec::new();
    for number in 0..30 {
        owners.push(own(&store, &claim_of(&format!("k-{number}"))).await);
    }
    let kept = |node: &PrivateRedis| node.command(&["DBSIZE"]).integer();
    assert!(cluster.nodes()[..3].iter().all(|node| kept(node) > 0));
    // What a node that was promoted is called is known from the other nodes' word.
    let name = "idem:r:tenant-7:k-0";
    tokio::task::block_in_place(|| {
        cluster.owner(name).await_replica(cluster.replica_of(name));
        cluster.failover(name);
    });
    for owner in &owners {
        common::complete(&store, owner).await;
    }
    let claims = builder(&cluster.localhost_tls_url()).min_replicas(NonZeroU32::MIN).connect().await.unwrap();
    own(&claims, &claim_of("acknowledged")).await;

    // Another host's certificates; an authority that nobody trusts.
    let by_address = cluster.localhost_tls_url().replace("localhost", "127.0.0.1");
    assert_not_trusted(&by_address, ca_file.clone()).await;
    let stranger = PrivateRedis::start(RedisSettings::new().tls("localhost"));
    assert_not_trusted(&cluster.localhost_tls_url(), stranger.ca_file()).await;
    let elsewhere = RedisCluster::start_with(RedisSettings::new().tls("elsewhere.example"), 1, 0);
    assert_not_trusted(&elsewhere.localhost_tls_url(), elsewhere.nodes()[0].ca_file()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_the_primary_that_they_name_are_reached_through_tls() {
    // They name it by its address.
    let servers = RedisSentinel::start_with(RedisSettings::new().password("pw").tls("127.0.0.1"));
    let [primary, replica] = servers.nodes();
    let ca_file = primary.ca_file();
    let store = RedisStore::builder(&servers.tls_url()).ca_file(&ca_file).timeout(PATIENCE).connect().await.unwrap();
    let owner = own(&store, &claim_of("k")).await;
    assert!(primary.command(&["PTTL", "idem:r:tenant-7:k"]).integer() > 0);
    tokio::task::block_in_place(|| {
        primary.await_replica(replica);
        primary.kill();
        servers.await_failover(primary);
    });
    common::eventually("the new primary is found", async || store.check().await.is_ok()).await;
    common::complete(&store, &owner).await;
    let stranger = PrivateRedis::start(RedisSettings::new().tls("127.0.0.1"));
    assert_not_trusted(&servers.tls_url(), stranger.ca_file()).await;
    let elsewhere = RedisSentinel::start_with(RedisSettings::new().tls("elsewhere.example"));
    assert_not_trusted(&elsewhere.tls_url(), elsewhere.nodes()[0].ca_file()).await;
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_server_that_keeps_nothing_is_warned_of() {
    let server = PrivateRedis::start(RedisSettings::new().set("appendonly", "no"));
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    RedisStore::connect(&server.url()).await.unwrap();
    let shown = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(shown.contains("WARN") && shown.contains("no append-only file"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_dropped_closes_its_connections() {
    let server = PrivateRedis::start(RedisSettings::new());
    let count = || server.command(&["CLIENT", "LIST", "TYPE", "normal"]).text().lines().count();
    let before = count();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let owner = own(&store, &claim_of("k")).await;
    store.wait(&common::scope(), &common::key("k"), owner.attempt(), Duration::from_millis(10)).await.unwrap();
    assert!(count() > before);
    drop(store);
    common::eventually("its connections are closed", async || {
        count() == before && server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text().lines().count() == 0
    })
    .await;
}

#[test]
fn a_store_outlives_the_runtime_that_it_was_first_used_in() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = RedisStore::builder(redis().url()).prefix(redis().prefix()).timeout(PATIENCE).build().unwrap();
    let first = claim_of("k");
    let owner = runtime().block_on(own(&store, &first));
    // Gone with its tasks. Two at a time, too.
    let (one, two) = (runtime(), runtime());
    one.block_on(common::complete(&store, &owner));
    two.block_on(own(&store, &claim_of("k-2")));
    drop(one);
    two.block_on(own(&store, &claim_of("k-3")));
    let (scope, key) = (common::scope(), common::key("k"));
    assert!(two.block_on(store.wait(&scope, &key, owner.attempt(), PATIENCE)).unwrap().is_some());
}
