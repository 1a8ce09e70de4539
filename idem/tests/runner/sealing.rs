//! Answers that the store must not know.

use std::sync::Arc;

use bytes::Bytes;
use idem::{
    Attempt, Body, Builder, Claimed, Idempotency, Outcome, Response, SealKey, SealKeys, Settled, State, StoreErrorKind,
    postgres::{
        PostgresStore,
        tokio_postgres::{NoTls, connect},
    },
    sqlite::{
        SqliteStore,
        rusqlite::{Connection, TransactionBehavior},
    },
};
use idem_conformance::faulty::{Fault, Operation};

use crate::place::{Ended, Place, key, never, request, scope};

fn keys(id: &str) -> SealKeys {
    SealKeys::new(SealKey::new(id, &[7; 32]).unwrap())
}

fn sealing(id: &str) -> impl FnOnce(Builder) -> Builder {
    let keys = Arc::new(keys(id));
    move |builder| builder.seal(keys)
}

fn token() -> Response {
    Response::new(201).with_header("location", "/tokens/top-secret").with_body("bearer top-secret")
}

fn tells_the_secret(bytes: &[u8]) -> bool {
    bytes.windows(10).any(|window| window == b"top-secret")
}

// case 036
pub(crate) async fn what_the_store_keeps_of_answers_and_steps_is_sealed_and_every_process_with_the_key_opens_it(
    place: Place,
) {
    let (runner, faults) = place.runner(sealing("2026-11")).await;
    let raw = place.open().await;
    let stored = async || raw.read(&scope(), &key("k")).await.unwrap().unwrap().record;

    let Claimed::Run(running) = runner.claim(request("k")).await else { panic!() };
    let issue = || async { Ok::<_, &str>(Bytes::from_static(b"top-secret")) };
    faults.arm(Fault::LoseReply, Operation::Checkpoint); // sealed twice, and the first one stays
    assert_eq!(running.attempt().step("issue", issue).await.unwrap(), "top-secret");
    let in_progress = stored().await;
    assert!(in_progress.checkpoints.find("issue").is_some() && !tells_the_secret(&in_progress.encode()));
    faults.arm(Fault::LoseReply, Operation::Complete);
    assert_eq!(running.complete(token()).await, Settled::Completed(token()));
    let done = stored().await;
    assert!(!tells_the_secret(&done.encode()));
    let State::Done(kept) = done.state else { panic!() };
    assert!(matches!(kept.body(), Body::Sealed { key_id, .. } if key_id == "2026-11"), "{kept:?}");

    let (another, _) = place.runner(sealing("2026-11")).await;
    let replay: Ended = another.run(request("k"), never).await;
    assert!(matches!(&replay, Outcome::Replay { response, .. } if *response == token()), "{replay:?}");
    let (keyless, _) = place.runner(sealing("2026-12")).await;
    let refused: Ended = keyless.run(request("k"), never).await;
    assert!(matches!(&refused, Outcome::Store(error) if error.kind() == StoreErrorKind::Configuration), "{refused:?}");
}

/// What the operation's own transaction committed: sent opened, and the same in the replay.
async fn assert_commits(runner: Idempotency, sent: Ended) {
    let sent = match sent {
        Outcome::Ran { reply, stored: true } => reply,
        Outcome::Recorded(response) => response,
        other => panic!("{other:?}"),
    };
    assert_eq!(sent, token());
    let replay: Ended = runner.run(request("k"), never).await;
    assert!(matches!(&replay, Outcome::Replay { response, .. } if *response == token()), "{replay:?}");
}

// case 036
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_a_transaction_of_sqlite_commits_is_nowhere_in_the_file_in_clear() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("idem.db");
    let store = SqliteStore::builder(&path).open().unwrap();
    let runner = Idempotency::builder(Arc::new(store.clone())).seal(Arc::new(keys("a"))).build().unwrap();
    let file = path.clone();
    let operation = move |attempt: Attempt| async move {
        let mut connection = Connection::open(file).map_err(|_| "no connection")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|_| "locked")?;
        attempt.commit(store.in_transaction(transaction), token()).map_err(|_| "not committed")
    };
    let sent = runner.run(request("k"), operation).await;
    assert_commits(runner, sent).await;
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap().path();
        assert!(!tells_the_secret(&std::fs::read(&file).unwrap()), "{file:?}");
    }
}

// case 036
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_a_transaction_of_postgres_commits_is_sealed() {
    let url = test_servers::postgres().url();
    let store = PostgresStore::builder(&url).table("runner_sealing").connect().await.unwrap();
    let runner = Idempotency::builder(Arc::new(store.clone())).seal(Arc::new(keys("a"))).build().unwrap();
    let (mut client, connection) = connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let committing = store.clone();
    let operation = move |attempt: Attempt| async move {
        let transaction = client.transaction().await.map_err(|_| "no transaction")?;
        attempt.commit(committing.in_transaction(transaction), token()).await.map_err(|_| "not committed")
    };
    let sent = runner.run(request("k"), operation).await;
    assert_commits(runner, sent).await;
    let record = idem::Store::read(&store, &scope(), &key("k")).await.unwrap().unwrap().record;
    assert!(!tells_the_secret(&record.encode()));
}
