use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use idem_core::{Answer, Claim, Completion, Fingerprint, Grant, Key, Response, Retention, Scope, Store, Token};
use test_servers::{PgBouncer, PgBouncerSettings, postgres};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::{PostgresStore, records::OwnerColumns, wait};

/// How long anything may take that is not supposed to.
const LIMIT: Duration = Duration::from_secs(60);

fn claim(key: &str, token: u8) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "b").build().unwrap();
    let token = Token::from_bytes([token; 16]);
    Claim::new(Scope::new("s").unwrap(), Key::new(key).unwrap(), token, fingerprint)
}

async fn claimed(store: &PostgresStore, key: &str) -> Grant {
    match idem_core::claim(store, &claim(key, 1)).await.unwrap() {
        Answer::Claimed(grant) => grant,
        other => panic!("an unused key was answered {other:?}"),
    }
}

/// A connection of the test's that hears what is said on the store's channel.
async fn ear(store: &PostgresStore) -> (Client, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(&postgres().url(), NoTls).await.unwrap();
    let (say, said) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(heard) = message {
                let _ = say.send(heard.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("LISTEN {}", store.inner.names.channel())).await.unwrap();
    (client, said)
}

async fn store(table: &str) -> PostgresStore {
    PostgresStore::builder(&postgres().url()).table(table).connect().await.unwrap()
}

/// Everything that is said on the channel before a word of the test's own, but for self-tests.
async fn said_until_now(
    store: &PostgresStore,
    client: &Client,
    said: &mut tokio::sync::mpsc::UnboundedReceiver<String>,
) -> Vec<String> {
    client.batch_execute(&format!("NOTIFY {}, 'end'", store.inner.names.channel())).await.unwrap();
    let mut heard = Vec::new();
    loop {
        match tokio::time::timeout(LIMIT, said.recv()).await.unwrap().unwrap() {
            word if word == "end" => return heard,
            word if word.starts_with("test ") => {}
            word => heard.push(word),
        }
    }
}

#[tokio::test]
async fn the_end_of_an_attempt_is_said_only_if_somebody_waits_and_once_for_any_number_of_waits() {
    let store = store("said").await;
    let (client, mut said) = ear(&store).await;
    let unwatched = claimed(&store, "unwatched").await;
    store.complete(unwatched.owner(), &Response::new(200), Retention::default()).await.unwrap();
    assert_eq!(said_until_now(&store, &client, &mut said).await, Vec::<String>::new());

    for end in ["complete", "complete_in", "release", "forget", "hold", "purge"] {
        let watched = claimed(&store, end).await;
        let (owner, waiting) = (watched.owner().clone(), store.clone());
        let waits = (0..10).map(|_| {
            let (owner, waiting) = (owner.clone(), waiting.clone());
            tokio::spawn(async move { waiting.wait(owner.scope(), owner.key(), owner.attempt(), LIMIT).await })
        });
        let waits: Vec<_> = waits.collect();
        let marked = format!("SELECT count(*) FROM public.said WHERE key = '{end}' AND waited");
        while client.query_one(&marked, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        match end {
            "complete" => drop(store.complete(&owner, &Response::new(200), Retention::default()).await.unwrap()),
            "complete_in" => {
                let (mut client, connection) = tokio_postgres::connect(&postgres().url(), NoTls).await.unwrap();
                tokio::spawn(connection);
                let transaction = client.transaction().await.unwrap();
                let completion = Completion::new(owner.clone(), Response::new(200), Retention::default());
                store.complete_in(&transaction, &completion).await.unwrap();
                transaction.commit().await.unwrap();
            }
            "release" => drop(store.release(&owner).await.unwrap()),
            "forget" => drop(store.forget(&owner).await.unwrap()),
            "hold" => drop(store.hold(&owner, Retention::default()).await.unwrap()),
            _ => drop(store.purge(owner.scope(), std::num::NonZeroUsize::MAX).await.unwrap()),
        }
        for wait in waits {
            tokio::time::timeout(LIMIT, wait).await.unwrap().unwrap().unwrap();
        }
        let bell = format!("{:016x}", wait::bell(owner.scope(), owner.key()));
        let heard: Vec<_> =
            said_until_now(&store, &client, &mut said).await.into_iter().filter(|w| *w == bell).collect();
        assert_eq!(heard, [bell], "{end}");
    }
}

#[tokio::test]
async fn a_store_hears_a_server_and_not_one_behind_a_pooler() {
    let direct = store("heard").await;
    while !direct.inner.listener.hears() {
        tokio::time::sleep(Duration::from_millis(5)).await; // until the self-test has succeeded
    }

    // One that was told of a pooler does not ask; one that was not finds out.
    let pooler = PgBouncer::start(&postgres().url(), PgBouncerSettings::new());
    let url = pooler.url_through(&postgres().url());
    let told = PostgresStore::builder(&url).through_pooler().table("heard").connect().await.unwrap();
    assert!(!told.inner.listener.hears());
    let untold = PostgresStore::builder(&url).through_pooler().listen(&url).table("heard").connect().await.unwrap();
    let asked = tokio::time::Instant::now();
    while asked.elapsed() < Duration::from_secs(3) {
        assert!(!untold.inner.listener.hears());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_wait_through_a_deaf_store_ends_all_the_same() {
    let manager = Manager::new(postgres().url().parse().unwrap(), NoTls);
    let pool = Pool::builder(manager).build().unwrap();
    let deaf = PostgresStore::from_pool(pool).table("deaf").connect().await.unwrap();
    assert!(!deaf.inner.listener.hears());
    let other = store("deaf").await;
    let grant = claimed(&other, "k").await;
    let owner = grant.owner().clone();
    let wait = tokio::spawn({
        let owner = owner.clone();
        async move { deaf.wait(owner.scope(), owner.key(), owner.attempt(), LIMIT).await }
    });
    tokio::task::yield_now().await;
    other.complete(&owner, &Response::new(201), Retention::default()).await.unwrap();
    let found = tokio::time::timeout(LIMIT, wait).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(found.record.state, idem_core::State::Done(Response::new(201)));
}

#[tokio::test]
async fn a_record_is_marked_once_for_any_number_of_waits_and_only_for_the_attempt_in_progress() {
    let store = store("marked").await;
    let grant = claimed(&store, "k").await;
    let owner = grant.owner();
    let is_told = async |owner: &idem_core::Owner, seen: idem_core::AttemptId| -> bool {
        let attempt = OwnerColumns::seen(owner.scope(), owner.key(), seen);
        let rows = store.rows("wait", &store.inner.statements.wait, &attempt.and(&[])).await.unwrap();
        rows[0].get(0)
    };
    let (client, _said) = ear(&store).await;
    let version = async || -> String {
        client.query_one("SELECT xmin::text FROM public.marked WHERE key = 'k'", &[]).await.unwrap().get(0)
    };
    let (seen, before) = (owner.attempt(), version().await);
    assert!(!is_told(owner, idem_core::AttemptId { number: seen.number + 1, ..seen }).await, "another number");
    assert!(!is_told(owner, idem_core::AttemptId { token: Token::from_bytes([9; 16]), ..seen }).await, "another token");
    assert_eq!(version().await, before, "nobody who was told, and nothing marked");
    assert!(is_told(owner, seen).await);
    let marked = version().await;
    assert_ne!(marked, before);
    assert!(is_told(owner, seen).await);
    assert_eq!(version().await, marked, "it was marked again");
    let ended = claimed(&store, "ended").await;
    store.release(ended.owner()).await.unwrap();
    assert!(!is_told(ended.owner(), ended.owner().attempt()).await, "it has ended");
}

#[tokio::test]
async fn a_takeover_is_said_to_those_who_wait_for_the_attempt_that_lapsed() {
    let store = store("taken").await;
    let (client, mut said) = ear(&store).await;
    while !store.inner.listener.hears() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let short = claim("k", 1).with_lease(Duration::from_millis(1));
    let Answer::Claimed(grant) = idem_core::claim(&store, &short).await.unwrap() else { panic!("the key is free") };
    let owner = grant.owner().clone();
    let wait = tokio::spawn({
        let (store, owner) = (store.clone(), owner.clone());
        async move { store.wait(owner.scope(), owner.key(), owner.attempt(), LIMIT).await }
    });
    let marked = "SELECT count(*) FROM public.taken WHERE waited";
    while client.query_one(marked, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let other = PostgresStore::builder(&postgres().url()).table("taken").connect().await.unwrap();
    let taken = idem_core::claim(&other, &claim("k", 2)).await.unwrap();
    assert!(matches!(taken, Answer::TakenOver(_)), "{taken:?}");
    tokio::time::timeout(LIMIT, wait).await.unwrap().unwrap().unwrap();
    let bell = format!("{:016x}", wait::bell(owner.scope(), owner.key()));
    assert_eq!(said_until_now(&store, &client, &mut said).await, [bell]);
    // Nobody waits for the new attempt.
    assert_eq!(client.query_one(marked, &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_connection_for_notifications_that_is_lost_is_made_again_and_ends_with_the_store() {
    let url = postgres().create_database(&[]);
    let store = PostgresStore::builder(&url).connect().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let listening = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    let sessions =
        async || -> i64 { client.query_one(&format!("SELECT count(*) {listening}"), &[]).await.unwrap().get(0) };
    for _ in 0..2 {
        while !store.inner.listener.hears() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(sessions().await, 1);
        client.query(&format!("SELECT pg_terminate_backend(pid) {listening}"), &[]).await.unwrap();
        while store.inner.listener.hears() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    while !store.inner.listener.hears() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(store);
    while sessions().await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
