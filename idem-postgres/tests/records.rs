//! What is kept is kept to the byte, and judged by the server's clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use common::{
    Place, Random, claim, claim_of, complete, fingerprint, granted, key, number, own, record, response, scope, token,
    word,
};
use futures_util::future::{join_all, join3};
use idem_core::{
    Answer, Checkpoint, Claim, Completion, Fenced, Key, Origin, Response, Retention, Scope, Store, StoreErrorKind,
    Timestamp,
};
use idem_postgres::PostgresStore;
use test_servers::postgres;

/// Bodies that text or JSON columns would refuse, change or lose.
fn bodies() -> Vec<Bytes> {
    let mut random = Random(7);
    let bytes = (0..1 << 20).map(|_| random.below(256) as u8).collect::<Vec<_>>();
    vec![
        Bytes::new(),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b"\xff\xfe\0\x80"),
        (0..=255).collect(),
        Bytes::from_static(br#"{ "b":1.0,  "a":1e2, "a":3 }"#),
        Bytes::from_static(br#""\ud800""#),
        Bytes::from_static(b"\\x00'; --"),
        Bytes::from(bytes),
    ]
}

// case 079, case 080, case 082
#[tokio::test]
async fn every_body_is_replayed_to_the_byte() {
    let place = Place::new("bodies");
    let (store, other) = (place.open().await, place.open().await);
    for (number, body) in bodies().into_iter().enumerate() {
        let response = Response::new(202)
            .with_header("x-bytes", &b"\xff\x01 "[..])
            .with_header("x-bytes", &b""[..])
            .with_body(body.clone())
            .with_trailer("x-trailer", body.slice(..body.len().min(40)));
        let name = format!("k-{number}");
        let owner = own(&store, &claim_of(&name)).await;
        let checkpoint = Checkpoint::new("bytes", body.slice(..body.len().min(60_000))).unwrap();
        assert!(matches!(store.checkpoint(&owner, &checkpoint).await.unwrap(), Fenced::Written(_)));
        let kept = record(&other, &name).await.unwrap().checkpoints;
        assert_eq!(kept.find("bytes"), Some(checkpoint.value()));
        let completed = store.complete(&owner, &response, common::retention()).await.unwrap();
        assert_eq!(completed, Fenced::Written(response.clone()));
        match claim(&other, &claim_of(&name)).await {
            Answer::Replay { response: replayed, .. } => assert!(replayed == response, "body {number}"),
            other => panic!("{other:?}"),
        }
    }
}

// case 080
#[tokio::test]
async fn message_ids_of_any_bytes_are_keys() {
    let place = Place::new("message_ids");
    let store = place.open().await;
    for id in [&b"\0"[..], b"a\0", b"a", b"\xff", b"\x80\0\x80"] {
        let claim = || {
            let (scope, key) = (Scope::digest_of(id).unwrap(), Key::digest_of(id).unwrap());
            Claim::new(scope, key, token(), fingerprint("the request"))
        };
        let owner = own(&store, &claim()).await;
        complete(&store, &owner).await;
        assert_eq!(word(&self::claim(&store, &claim()).await), "Replay");
    }
    assert_eq!(place.count().await, 5);
}

// case 110
#[tokio::test]
async fn the_longest_names_fit_into_the_indexes_and_stay_apart() {
    let place = Place::new("long_names");
    let store = place.open().await;
    let mut random = Random(1);
    // Nothing that the server could compress.
    let mut noise =
        |length: usize| -> String { (0..length).map(|_| char::from(b'!' + random.below(94) as u8)).collect() };
    let wide = "\u{1f600}".repeat(63) + "abc";
    assert_eq!(wide.len(), 255);
    let pairs = [
        (noise(255), noise(255)),
        (wide.clone(), wide.clone()),
        (noise(255), noise(254) + "x"),
        ("é".repeat(127), "e\u{301}".repeat(85)),
    ];
    for (scope, key) in &pairs {
        // The same but for the last byte, or the case, or the form of an accent, is another name.
        let last = key.char_indices().last().unwrap().0;
        for key in [key.clone(), format!("{}y", &key[..last]), key[..last].to_owned()] {
            let claim = || {
                let (scope, key) = (Scope::new(scope).unwrap(), Key::new(&key).unwrap());
                Claim::new(scope, key, token(), fingerprint("the request"))
            };
            let owner = own(&store, &claim()).await;
            complete(&store, &owner).await;
            assert_eq!(word(&self::claim(&store, &claim()).await), "Replay");
        }
    }
    assert_eq!(place.count().await, 12);
    for names in ["Key", "key", "KEY", "straße", "strasse", "ä", "a\u{308}"] {
        own(&store, &claim_of(names)).await;
    }
}

/// The server's clock in milliseconds.
async fn server_now(place: &Place) -> i64 {
    let sql = "SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::int8";
    number(&place.connect().await, sql).await
}

fn host_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Claims under fresh tokens until the answer is another one. Gives it, and the last instant that the server gave
/// before.
async fn until_not(store: &PostgresStore, name: &str, expected: &str, retention: Duration) -> (Answer, Timestamp) {
    let mut before = Timestamp::from_millis(i64::MIN);
    loop {
        let claim = Claim::new(scope(), key(name), token(), fingerprint("the request"))
            .with_lease(Duration::from_secs(2))
            .with_retention(Retention::new(retention));
        match idem_core::claim(store, &claim).await.unwrap() {
            Answer::Conflict { left: Some(left), .. } if expected == "Conflict" => {
                let end = record(store, name).await.unwrap().lease_end;
                before = before.max(Timestamp::from_millis(end.as_millis() - left.as_millis() as i64));
            }
            Answer::Replay { .. } if expected == "Replay" => {
                if let Some(found) = store.read(&scope(), &key(name)).await.unwrap() {
                    before = before.max(found.now);
                }
            }
            other => return (other, before),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// case 084, case 086, case 087
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_retentions_are_judged_by_the_servers_clock_to_the_millisecond() {
    let url = postgres().create_database(&[]);
    let place = Place::at(&url, "by_the_server");
    let open = async || PostgresStore::builder(&url).table("by_the_server").connect().await.unwrap();
    let (store, other) = (open().await, open().await);
    let (lease, retention) = (Duration::from_secs(2), Duration::from_secs(3));
    let claim = |name: &str| {
        Claim::new(scope(), key(name), token(), fingerprint("the request"))
            .with_lease(lease)
            .with_retention(Retention::new(retention))
    };

    let lapses = async {
        let before = server_now(&place).await;
        own(&store, &claim("lapses")).await;
        let after = server_now(&place).await;
        let first = record(&store, "lapses").await.unwrap();
        assert!((before..=after).contains(&first.claimed.as_millis()));
        // As it is in the table.
        let client = place.connect().await;
        let raw = "SELECT claimed, lease_end - claimed, expiry - claimed FROM by_the_server WHERE key = 'lapses'";
        let row = client.query_one(raw, &[]).await.unwrap();
        let raw: (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(raw, (first.claimed.as_millis(), 2_000, 3_000));

        let (answer, last) = until_not(&other, "lapses", "Conflict", retention).await;
        assert!(last < first.lease_end, "a conflict after the lapse");
        let grant = granted(answer);
        assert_eq!((grant.number(), grant.origin()), (2, Origin::Takeover));
        let second = record(&store, "lapses").await.unwrap();
        assert!(second.claimed >= first.lease_end, "taken over before the lapse");
    };
    // Nobody sweeps.
    let expires = async {
        let owner = own(&store, &claim("expires")).await;
        let keep = Retention::new(retention);
        assert_eq!(store.complete(&owner, &response(), keep).await.unwrap(), Fenced::Written(response()));
        let done = record(&store, "expires").await.unwrap();
        assert_eq!(done.expiry.since(done.settled.unwrap()), retention);
        let (answer, last) = until_not(&other, "expires", "Replay", retention).await;
        assert!(last < done.expiry, "a replay after the end of its retention");
        let grant = granted(answer);
        assert_eq!((grant.number(), grant.origin(), grant.is_repeat()), (1, Origin::First, false));
        assert!(record(&store, "expires").await.unwrap().claimed >= done.expiry);
    };
    // A lease that is renewed does not lapse.
    let renewed = async {
        let owner = own(&store, &claim("renewed")).await;
        let first = record(&store, "renewed").await.unwrap().lease_end;
        while Timestamp::from_millis(server_now(&place).await) < first.after(Duration::from_millis(200)) {
            assert_eq!(store.renew(&owner, lease).await.unwrap(), Fenced::Written(()));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Renewed a moment ago, unless this process stood still for a whole lease.
        assert_eq!(store.renew(&owner, lease).await.unwrap(), Fenced::Written(()));
        assert_eq!(word(&idem_core::claim(&other, &claim("renewed")).await.unwrap()), "Conflict");
    };
    join3(lapses, expires, renewed).await;
}

// case 084
#[tokio::test]
async fn a_host_whose_clock_is_an_hour_off_judges_as_the_server_does() {
    // As the host is to a server whose clock is right, the server's clock is to this host.
    for (name, shift) in [("fast", 3_600_000_i64), ("slow", -3_600_000)] {
        let url = postgres().create_database(&[]);
        let place = Place::at(&url, "shifted");
        let client = place.connect().await;
        let functions = ["clock_timestamp", "statement_timestamp"].map(|function| {
            format!(
                "CREATE FUNCTION shifted.{function}() RETURNS timestamptz LANGUAGE sql VOLATILE
                AS $$ SELECT pg_catalog.{function}() + interval '{shift} ms' $$;"
            )
        });
        let script = format!(
            "CREATE SCHEMA shifted; {} ALTER DATABASE {} SET search_path = shifted, pg_catalog, public",
            functions.concat(),
            url.rsplit('/').next().unwrap()
        );
        client.batch_execute(&script).await.unwrap();

        let store = PostgresStore::builder(&url).table("shifted").connect().await.unwrap();
        let lease = Duration::from_secs(20);
        let before = host_now();
        own(&store, &claim_of("k").with_lease(lease)).await;
        let claimed = record(&store, "k").await.unwrap();
        let at = claimed.claimed.as_millis() - shift;
        assert!((before - 1..=host_now() + 1).contains(&at), "{name}: {at}, {before}");
        assert_eq!(claimed.lease_end.since(claimed.claimed), lease);
        match claim(&store, &claim_of("k")).await {
            Answer::Conflict { left: Some(left), .. } => assert!(left <= lease && !left.is_zero(), "{name}: {left:?}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_row_of_a_newer_version_or_a_damaged_one_is_said_and_not_guessed() {
    let place = Place::new("damaged");
    let store = place.open().await;
    let client = place.connect().await;
    for (number, (damage, kind)) in [
        ("format = 2", StoreErrorKind::Configuration),
        ("token = 'short'", StoreErrorKind::Corrupt),
        ("number = -1", StoreErrorKind::Corrupt),
        ("number = 4294967296", StoreErrorKind::Corrupt),
        ("lapses = -1", StoreErrorKind::Corrupt),
        ("origin = 9", StoreErrorKind::Corrupt),
        ("on_lapse = 9", StoreErrorKind::Corrupt),
        ("state = 9", StoreErrorKind::Corrupt),
        ("fingerprint = ''", StoreErrorKind::Corrupt),
        ("fingerprint = '\\xff'", StoreErrorKind::Configuration),
        ("checkpoint_names = '{a}'", StoreErrorKind::Corrupt),
        ("state = 3, response = ''", StoreErrorKind::Corrupt),
        ("state = 3, response = '\\xffff'", StoreErrorKind::Configuration),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("k-{number}");
        own(&store, &claim_of(&name)).await;
        let update = format!("UPDATE damaged SET {damage} WHERE key = '{name}'");
        assert_eq!(client.execute(&update, &[]).await.unwrap(), 1);
        let errors = [
            store.claim(&claim_of(&name)).await.err(),
            store.read(&scope(), &key(&name)).await.err(),
            idem_core::claim(&store, &claim_of(&name)).await.err(),
        ];
        for error in errors {
            let error = error.unwrap_or_else(|| panic!("{damage} went unnoticed"));
            assert_eq!(error.kind(), kind, "{damage}: {error}");
            assert!(!error.to_string().contains("k-"), "{error}");
        }
    }
}

#[tokio::test]
async fn leases_and_retentions_without_end_last_to_the_end_of_time() {
    let place = Place::new("without_end");
    let (store, mut client) = (place.open().await, place.connect().await);
    let (end, forever) = (Timestamp::from_millis(i64::MAX), Retention::new(Duration::MAX));
    let names = ["renewed", "completed", "held", "completed_in", "claimed"];
    let claims = names.map(|name| claim_of(name).with_lease(Duration::MAX).with_retention(forever));
    // The first of them goes by itself, and the others together.
    let owners = join_all(claims.iter().map(|claim| own(&store, claim))).await;
    for name in names {
        let found = record(&store, name).await.unwrap();
        assert_eq!((found.lease_end, found.expiry), (end, end), "{name}");
    }
    assert_eq!(store.renew(&owners[0], Duration::MAX).await.unwrap(), Fenced::Written(()));
    assert!(matches!(store.complete(&owners[1], &response(), forever).await.unwrap(), Fenced::Written(_)));
    assert_eq!(store.hold(&owners[2], forever).await.unwrap(), Fenced::Written(()));
    let transaction = client.transaction().await.unwrap();
    let completion = Completion::new(owners[3].clone(), response(), forever);
    assert!(matches!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(_)));
    transaction.commit().await.unwrap();
    for name in names {
        assert_eq!(record(&store, name).await.unwrap().expiry, end, "{name}");
    }
    assert_eq!(store.sweep(std::num::NonZeroUsize::MAX).await.unwrap(), 0);
}

#[tokio::test]
async fn claims_of_two_keys_under_one_token_that_travel_together_are_answered_apart() {
    let place = Place::new("one_token");
    let store = place.open().await;
    for order in 0..2 {
        let (taken, free) = (format!("taken {order}"), format!("free {order}"));
        own(&store, &claim_of(&taken)).await;
        let token = token();
        let of = |name: &str| Claim::new(scope(), key(name), token, fingerprint("the request"));
        let mut claims = [claim_of(&format!("head {order}")), of(&taken), of(&free)];
        if order == 1 {
            claims.swap(1, 2);
        }
        // The first goes by itself, and the others come meanwhile.
        let answers = join_all(claims.iter().map(|of| claim(&store, of))).await;
        let mut words: Vec<_> = answers.iter().map(word).collect();
        if order == 1 {
            words.swap(1, 2);
        }
        assert_eq!(words, ["Claimed", "Conflict", "Claimed"]);
    }
}
