//! Fidelity: what is replayed is what was recorded, to the byte, and names are exactly their bytes.

use bytes::Bytes;
use idem_core::{Body, Key, NotRetained, Response, Retention, Scope};

use crate::{
    Harness,
    expect::{claimed, conflict, present, replayed, written},
    rng::Rng,
    world::{World, key, scope},
};

/// A replay has the status, the headers in their order, the body and the trailers of the response that was recorded,
/// whatever bytes they are: a body of any bytes is no text, and JSON is not re-ordered.
// cases 080, 082, 097
pub async fn a_replay_equals_the_recorded_response_to_the_byte(harness: &Harness) {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let responses = [
        Response::new(201).with_body(r#"{ "b":1.0, "a":1e2, "a":3,  "\u0061":"\ud800" }"#),
        Response::new(200).with_body(&b"\0\xff\0"[..]),
        Response::new(200).with_body(all_bytes.clone()),
        Response::new(200).with_body("'; drop table records; -- {} %s \\ \u{1f600}\r\n"),
        Response::new(201)
            .with_header("x-twice", "2")
            .with_header("location", "/payments/1")
            .with_header("x-twice", "1")
            .with_header("X-Twice", "")
            .with_header("x-bytes", all_bytes)
            .with_body("ok"),
        Response::new(200)
            .with_body("chunks")
            .with_trailer("grpc-status", "0")
            .with_trailer("grpc-status", &b"\xff\0"[..]),
        Response::new(100),
        Response::new(65_535),
    ];
    for response in responses {
        assert_replayed(harness, response).await;
    }
}

/// A response without a body is recorded and replayed like any other.
// case 079
pub async fn an_empty_body_is_recorded_and_replayed(harness: &Harness) {
    assert_replayed(harness, Response::new(202)).await;
    assert_replayed(harness, Response::new(204).with_header("etag", "\"1\"")).await;
}

/// A body of 1 MiB, the largest that the HTTP layer keeps by default, and one byte more, is replayed whole.
// case 125
pub async fn a_body_of_1_mib_is_replayed_whole(harness: &Harness) {
    for length in [1 << 20, (1 << 20) + 1] {
        let body = Rng::from_seed(length as u64).bytes(length);
        assert_replayed(harness, Response::new(200).with_body(body)).await;
    }
}

/// A body that is kept, one that is sealed, and one that is not retained for each reason are told apart.
// cases 036, 125
pub async fn a_sealed_body_and_one_not_retained_stay_what_they_are(harness: &Harness) {
    let bytes = Bytes::from_static(b"sealed \0\xff");
    let bodies = [
        Body::Sealed { key_id: "2026-11".into(), bytes: bytes.clone() },
        Body::Sealed { key_id: "k".repeat(255), bytes: Bytes::new() },
        Body::Kept(bytes),
        Body::NotRetained(NotRetained::TooLarge),
        Body::NotRetained(NotRetained::Secret),
    ];
    for body in bodies {
        assert_replayed(harness, Response::new(200).with_kept(body)).await;
    }
}

/// Every valid name is a key and a scope of its own: the longest ones, those that differ in case, in trailing spaces or
/// in how Unicode composes them, those that mean something in SQL, in patterns, in paths or in templates, and those that
/// begin alike. The same key under two scopes names two records, and so do scopes and keys that join to the same string.
// cases 030, 091, 110, 113
pub async fn names_are_their_bytes_and_no_two_share_a_record(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let mut claims = Vec::new();
    let with_scope = odd_names().into_iter().map(|name| (scope(&name), key("k")));
    let with_key = odd_names().into_iter().map(|name| (scope("tenant"), key(&name)));
    // Whatever scope and key are joined by, and whatever that is escaped as.
    let separators = ["::", "--", "__", "%3A", "%2F", "%25", "\\:", "||", "->", ", "].map(str::to_owned);
    let separators = (b'!'..=b'~').map(|byte| char::from(byte).to_string()).chain(separators).collect::<Vec<_>>();
    let around = |by: &String| [(format!("a{by}b"), "c".to_owned()), ("a".to_owned(), format!("b{by}c"))];
    let pairs = [("a", "bc"), ("ab", "c"), ("bc", "a")].map(|(first, second)| (first.to_owned(), second.to_owned()));
    let pairs = pairs.into_iter().chain(separators.iter().flat_map(around));
    let joined = pairs.map(|(first, second)| (scope(&first), key(&second)));
    // The longest names of both.
    let long = |last: &str| format!("{}{last}", "y".repeat(255 - last.len()));
    let longest = ["a", "b"].map(|last| (scope(&long("s")), key(&long(last))));
    let longest = longest.into_iter().chain(["t", "u"].map(|last| (scope(&long(last)), key(&long("a")))));
    let global = [(Scope::global(), key("k")), (Scope::global(), key("bc"))];
    let digests = [b"\0".as_slice(), b"\0\0"].map(|id| {
        let key = Key::digest_of(id).expect("bytes make a key");
        (scope("tenant"), key)
    });
    for (scope, key) in with_scope.chain(with_key).chain(joined).chain(longest).chain(global).chain(digests) {
        let claim = world.claim(&scope, &key);
        let grant = claimed(
            world.ask(&claim).await,
            // They are the suite's own names: nothing to hide.
            &format!(
                "{:?} {:?} must be a record of its own, and its first claim Claimed",
                scope.as_str(),
                key.as_str()
            ),
        );
        assert_eq!(grant.number(), 1, "The first claim of a key must be attempt 1");
        claims.push((claim, grant));
    }
    let response = |index: usize| Response::new(200).with_body(format!("the response of name {index}"));
    for (index, (claim, grant)) in claims.iter().enumerate() {
        conflict(
            idem_core::claim(&*other, &world.claim(claim.scope(), claim.key())).await,
            "A claimed key must be found again under the same name, through any handle",
        );
        let completed = world.store().complete(grant.owner(), &response(index), Retention::default()).await;
        written(completed, "A completion by the owner must be Written");
    }
    for (index, (claim, _)) in claims.iter().enumerate() {
        let rule = format!("{:?} {:?} must be Replay", claim.scope(), claim.key());
        let replay = replayed(idem_core::claim(&*other, &world.claim(claim.scope(), claim.key())).await, &rule);
        assert_eq!(replay, response(index), "{rule} of its own response, and not of another name's");
    }
}

/// Names that stores are apt to confuse. All are valid, and no two are equal.
pub(crate) fn odd_names() -> Vec<String> {
    let long = |last: &str| format!("{}{last}", "x".repeat(255 - last.len()));
    let mut names: Vec<String> = [
        "k1",
        "K1",
        "k1 ",
        " k1",
        "k1  ",
        "k",
        "k%",
        "k_",
        "k*",
        "k?",
        "k[1]",
        "%",
        "_",
        "*",
        "{k}",
        "{}",
        "{0}",
        "}{",
        "'",
        "''",
        "\"",
        "`",
        "\\",
        "\\\\",
        "\\'",
        "'; drop table records; --",
        "1; select 1",
        "null",
        "NULL",
        "global",
        "default",
        "all",
        "none",
        "public",
        "0",
        "00",
        "1e0",
        "true",
        "../k",
        "/",
        "k/1",
        "k:1",
        "k::1",
        ":",
        "k\u{a0}",
        "é",
        "e\u{301}",
        "ß",
        "ss",
        "SS",
        "İ",
        "i̇",
        "ı",
        "\u{200b}k",
        "\u{feff}k",
        "😀",
        "日本",
        "ﷺ",
        "$1",
        "?1",
        ":k",
        "@k",
        "%s",
        "%00",
        "&amp;",
        "-k",
        "--",
        "#",
        "~",
    ]
    .map(String::from)
    .into();
    names.extend([
        long("a"),
        long("b"),
        "x".repeat(254),
        "x".repeat(128),
        "x".repeat(64),
        "x".repeat(63),
        "é".repeat(127),
    ]);
    names
}

pub(crate) async fn assert_replayed(harness: &Harness, response: Response) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
    let answer = world.store().complete(grant.owner(), &response, Retention::default()).await;
    let answer = written(answer, "A completion by the owner must be Written");
    assert_same(&answer, &response, "A completion must be answered with the recorded response");
    for handle in [world.store(), &other] {
        let replay = idem_core::claim(&**handle, &world.claim(&tenant, &key)).await;
        assert_same(&replayed(replay, "A done record must be Replay"), &response, "A replay must equal the response");
        let read = present(handle.read(&tenant, &key).await, "A done record must be there");
        assert_eq!(read.state, idem_core::State::Done(response.clone()), "A read must give the response");
    }
}

/// Says which part differs and where, since `Debug` of a response shows sizes only.
#[track_caller]
fn assert_same(got: &Response, expected: &Response, rule: &str) {
    assert_eq!(got.status(), expected.status(), "{rule}: its status");
    assert_eq!(got.headers(), expected.headers(), "{rule}: its headers, in their order");
    assert_eq!(got.trailers(), expected.trailers(), "{rule}: its trailers, in their order");
    if let (Body::Kept(got), Body::Kept(expected)) = (got.body(), expected.body()) {
        let at = got.iter().zip(expected).position(|(got, expected)| got != expected);
        let at = at.unwrap_or(got.len().min(expected.len()));
        let around = |bytes: &Bytes| bytes.slice(at.saturating_sub(8).min(bytes.len())..(at + 24).min(bytes.len()));
        assert!(
            got == expected,
            "{rule}: its body, of {} bytes, must have {:?} around byte {at}; the store gave {} bytes with {:?}",
            expected.len(),
            around(expected),
            got.len(),
            around(got)
        );
    }
    assert!(got.body() == expected.body(), "{rule}: its body must be {:?} and is {:?}", expected.body(), got.body());
}
