//! Records in Redis, and what becomes of payments when it forgets some: a failover loses what the new primary had not got.
//! The payments are in a SQLite file, where their key is unique.

use test_servers::{PrivateRedis, RedisSettings};

use crate::{
    client::Reply,
    server::{BODY, Place, Process, assert_replays, code, is_replay, json},
};

/// Two servers on one Redis and one ledger, with one provider.
struct Stage {
    redis: PrivateRedis,
    one: Process,
    other: Process,
    _place: Place,
    _provider: Process,
}

impl Stage {
    async fn set() -> Self {
        let redis = PrivateRedis::start(RedisSettings::new());
        let (place, provider) = (Place::of_records(&redis.url()), Process::provider().await);
        let options = ["--lease", "2s", "--provider", &provider.url];
        let (one, other) = (place.serve(&options).await, place.serve(&options).await);
        Self { redis, one, other, _place: place, _provider: provider }
    }

    /// As if the claim, or the whole record, had not reached the replica that was promoted.
    fn forget_record(&self) {
        assert_eq!(self.redis.command(&["DEL", RECORD]).integer(), 1, "there is a record to forget");
    }
}

/// Where the record of tenant 7's `k-1` is.
const RECORD: &str = "idem:r:7:k-1";

const OTHER_AMOUNT: &str = r#"{"amountMinor":1,"currency":"VND"}"#;

/// That it says: send it again. What an attempt has to say that lost its key is not what is recorded.
fn assert_lost_its_key(reply: &Reply) {
    assert_eq!((reply.status.as_u16(), &*code(reply)), (409, "request-in-progress"));
    assert!(reply.header("retry-after").is_some());
}

/// That it is an answer of its own, and says the same.
fn assert_ran_again(reply: &Reply, first: &Reply) {
    assert!(!is_replay(reply), "{reply:?}");
    assert_eq!((reply.status, &reply.body), (first.status, &first.body));
    assert_eq!(reply.header("content-type"), first.header("content-type"));
}

// case 023
#[tokio::test(flavor = "multi_thread")]
async fn a_payment_whose_record_is_forgotten_is_found_by_its_unique_key_and_answers_the_same() {
    let stage = Stage::set().await;
    let first = stage.one.pay("k-1", BODY, &[]).await;
    assert_eq!((first.status.as_u16(), &json(&first)["id"]), (201, &"1".into()));
    stage.forget_record();
    let again = stage.other.pay("k-1", BODY, &[]).await;
    assert_ran_again(&again, &first);
    assert_eq!(stage.other.totals().await, [1, 1, 1], "the provider was not even called");
    assert_eq!(stage.other.record("k-1").await.unwrap()["attempt"], 1, "it could not tell that it ran before");
    assert_replays(&stage.one.pay("k-1", BODY, &[]).await, &first);
}

// case 023
#[tokio::test(flavor = "multi_thread")]
async fn two_attempts_at_the_same_time_since_the_first_claim_is_forgotten_make_one_payment_and_one_answer() {
    let stage = Stage::set().await;
    let (first, second) = tokio::join!(stage.one.pay("k-1", BODY, &[("x-delay-ms", "5000")]), async {
        stage.one.provider_called(1).await;
        stage.forget_record();
        stage.other.pay("k-1", BODY, &[]).await
    });
    assert_eq!((second.status.as_u16(), is_replay(&second)), (201, false));
    assert_lost_its_key(&first);
    assert_eq!(stage.one.totals().await, [2, 1, 1]);
    for server in [&stage.one, &stage.other] {
        assert_replays(&server.pay("k-1", BODY, &[]).await, &second);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_is_forgotten_is_taken_over_from_and_answers_the_same() {
    let stage = Stage::set().await;
    let (first, claimed) = tokio::join!(stage.one.pay("k-1", BODY, &[("x-delay-ms", "300")]), async {
        stage.one.provider_called(1).await;
        stage.redis.command(&["GET", RECORD])
    });
    assert_eq!(first.status, 201);
    // The claim, which the replica had got, and not what came after it. Its lease counts from the time that is left.
    stage.redis.connect().command(&[b"SET", RECORD.as_bytes(), claimed.bytes(), b"KEEPTTL"]);
    assert_eq!(stage.one.record("k-1").await.unwrap()["state"], "in progress");
    let again = stage.other.pay_until_answered("k-1", BODY).await;
    assert_ran_again(&again, &first);
    assert_eq!(stage.other.totals().await, [1, 1, 1], "the row was found");
    assert_eq!(stage.other.record("k-1").await.unwrap()["takeovers"], 1);
    assert_replays(&stage.one.pay("k-1", BODY, &[]).await, &first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_record_is_forgotten_pays_for_nothing_else() {
    let stage = Stage::set().await;
    let first = stage.one.pay("k-1", BODY, &[]).await;
    stage.forget_record();
    for _ in 0..2 {
        let reuse = stage.other.pay("k-1", OTHER_AMOUNT, &[]).await;
        assert_eq!((reuse.status.as_u16(), &*code(&reuse)), (422, "key-charged-otherwise"));
    }
    assert_ran_again(&stage.one.pay("k-1", BODY, &[]).await, &first);
    assert_eq!(stage.one.totals().await, [1, 1, 1]);
}

/// A reuse that meets the first attempt while it is at the provider, before there is a row.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_claim_is_forgotten_while_it_runs_charges_for_nothing_else() {
    let stage = Stage::set().await;
    let (first, reuse) = tokio::join!(stage.one.pay("k-1", BODY, &[("x-delay-ms", "5000")]), async {
        stage.one.provider_called(1).await;
        stage.forget_record();
        stage.other.pay("k-1", OTHER_AMOUNT, &[]).await
    });
    assert_eq!((reuse.status.as_u16(), &*code(&reuse)), (422, "key-charged-otherwise"));
    assert_lost_its_key(&first);
    let retry = stage.other.pay("k-1", BODY, &[]).await;
    assert_eq!((retry.status.as_u16(), is_replay(&retry)), (201, false));
    assert_eq!(json(&retry)["amountMinor"], 250_000);
    assert_eq!(stage.one.totals().await, [2, 1, 1], "the row of the first attempt was found");
    assert_replays(&stage.one.pay("k-1", BODY, &[]).await, &retry);
}

/// A provider that forgets as well, as one does after its own retention: only the ledger still knows.
#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_alone_keeps_a_payment_from_being_charged_twice() {
    let redis = PrivateRedis::start(RedisSettings::new());
    let place = Place::of_records(&redis.url());
    let server = place.serve(&[]).await;
    let first = server.pay("k-1", BODY, &[]).await;
    server.kill().await; // and the provider in it
    redis.command(&["FLUSHALL"]);
    let server = place.serve(&[]).await;
    assert_ran_again(&server.pay("k-1", BODY, &[]).await, &first);
    assert_eq!(server.totals().await, [0, 0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_away_is_a_503_without_a_charge_and_the_retry_pays() {
    let redis = PrivateRedis::start(RedisSettings::new());
    let place = Place::of_records(&redis.url());
    let server = place.serve_quietly(&[]).await;
    redis.kill();
    let away = server.pay("k-1", BODY, &[]).await;
    assert_eq!((away.status.as_u16(), &*code(&away)), (503, "store-unavailable"));
    assert!(away.header("retry-after").is_some());
    assert_eq!(server.totals().await, [0, 0, 0]);
    redis.start_again();
    let paid = server.pay("k-1", BODY, &[]).await;
    assert_eq!((paid.status.as_u16(), server.totals().await), (201, [1, 1, 1]));
}
