use idem_core::{Claim, Key, Scope, machine};

use super::*;

const BASE: Timestamp = Timestamp::from_millis(1_700_000_000_123);

fn fingerprint() -> Fingerprint {
    Fingerprint::builder().part("body", "b").build().unwrap()
}

/// A record of a first claim.
fn in_progress() -> Record {
    let key = Key::new("k").unwrap();
    let claim = Claim::new(Scope::global(), key, Token::from_bytes([0xa5; 16]), fingerprint());
    let claimed = machine::claim(None, &claim, BASE).unwrap();
    claimed.write.unwrap()
}

/// A record of every state, with everything that a record of it can have.
fn records() -> Vec<Record> {
    let first = in_progress();
    let checkpoints: Checkpoints = [
        ("step".to_owned(), Bytes::from_static(b"\x00\xff\r\n")),
        ("empty".to_owned(), Bytes::new()),
        ("é".to_owned(), Bytes::from(vec![7; 60_000])),
    ]
    .into_iter()
    .collect();
    let later = Record {
        number: u32::MAX,
        lapses: u32::MAX,
        origin: Origin::Takeover,
        repeat: true,
        on_lapse: OnLapse::Hold,
        started: true,
        checkpoints,
        ..first.clone()
    };
    let settled = Some(Timestamp::from_millis(1_700_000_000_456));
    let response = Response::new(201).with_header("x", &b"\xff\x01"[..]).with_body(vec![0, 255, 13, 10]);
    let mut records = vec![first.clone(), later.clone()];
    records.push(Record { state: State::Released, settled, origin: Origin::Release, ..later.clone() });
    records.push(Record { state: State::Released, settled, fingerprint: None, ..first.clone() });
    records.push(Record { state: State::Held, settled, origin: Origin::Resolved, ..later.clone() });
    let checkpoints = Checkpoints::default();
    records.push(Record { state: State::Done(response), settled, checkpoints: checkpoints.clone(), ..later });
    records.push(Record { state: State::Done(Response::new(204)), settled, checkpoints, ..first.clone() });
    let forever = Timestamp::from_millis(i64::MAX);
    records.push(Record { lease_end: forever, expiry: forever, ..first });
    records
}

#[test]
fn a_record_of_every_state_is_read_as_it_was_written() {
    for record in records() {
        let value = encode(&record, BASE, 77);
        let stored = decode(value).unwrap();
        assert_eq!(stored, Stored { record, base: BASE, ttl: 77 });
    }
}

/// Format 1, for ever: a change of it fails here, and asks for a new number.
#[test]
fn the_bytes_of_format_1_are_these() {
    let record = Record {
        state: State::Held,
        number: 3,
        lapses: 2,
        origin: Origin::Takeover,
        repeat: true,
        started: true,
        on_lapse: OnLapse::Hold,
        settled: Some(Timestamp::from_millis(5)),
        lease_end: Timestamp::from_millis(3),
        claimed: Timestamp::from_millis(4),
        expiry: Timestamp::from_millis(6),
        fingerprint: None,
        checkpoints: [("ab".to_owned(), Bytes::from_static(b"xyz"))].into_iter().collect(),
        ..in_progress()
    };
    let value = encode(&record, Timestamp::from_millis(1), 2);
    let mut expected = b"i\x01h\x27".to_vec();
    expected.extend([0, 0, 0, 3, 0, 0, 0, 2]);
    expected.extend([0xa5; 16]);
    for instant in 1..=6_i64 {
        expected.extend(instant.to_be_bytes());
    }
    expected.extend([0, 0, 0, 0]); // no fingerprint
    expected.extend([0, 1, 0, 2, b'a', b'b', 0, 0, 0, 3, b'x', b'y', b'z']);
    assert_eq!(value, expected);

    let fingerprint = fingerprint();
    let response = Response::new(201);
    let done = Record { state: State::Done(response.clone()), settled: Some(BASE), ..in_progress() };
    let value = encode(&done, BASE, 2);
    assert_eq!(value[2], b'd');
    let length = fingerprint.as_bytes().len();
    assert_eq!(value[76..80], u32::try_from(length).unwrap().to_be_bytes());
    assert_eq!(value[80..80 + length], *fingerprint.as_bytes());
    assert_eq!(value[80 + length..], response.encode());
}

#[test]
fn a_newer_format_is_refused_as_one() {
    for format in [2, 3, 255] {
        let mut value = encode(&in_progress(), BASE, 1).to_vec();
        value[1] = format;
        assert_eq!(decode(value.into()), Err(DecodeError::Newer { what: WHAT, found: format, known: FORMAT }));
    }
}

#[test]
fn what_ends_early_or_late_or_begins_otherwise_is_corrupt() {
    let is_corrupt = |value: &[u8]| matches!(decode(Bytes::copy_from_slice(value)), Err(DecodeError::Corrupt { .. }));
    for record in records().iter().filter(|record| record.checkpoints.size() < 1_000) {
        let value = encode(record, BASE, 1);
        for end in 0..value.len() {
            assert!(is_corrupt(&value[..end]), "{end} bytes of {record:?}");
        }
        let mut longer = value.to_vec();
        longer.push(0);
        assert!(is_corrupt(&longer), "{record:?}");
        for (at, byte) in [(0, b'j'), (1, 0), (2, b'x'), (2, 0), (3, 0x40)] {
            let mut damaged = value.to_vec();
            damaged[at] = byte;
            assert!(is_corrupt(&damaged), "byte {at} of {record:?}");
        }
    }
}

#[test]
fn no_value_makes_it_panic() {
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |end: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % end as u64) as usize
    };
    let values: Vec<Bytes> = records().iter().map(|record| encode(record, BASE, 1)).collect();
    for _ in 0..20_000 {
        let mut value = values[below(values.len())].to_vec();
        value.truncate(1 + below(300));
        for _ in 0..1 + below(4) {
            let at = below(value.len());
            value[at] = below(256) as u8;
        }
        // A response in it may be of a newer format.
        let _ = decode(value.into());
    }
}

#[test]
fn a_time_to_live_is_at_least_a_millisecond_and_no_more_than_scripts_can_count() {
    let with = |expiry| Record { expiry: Timestamp::from_millis(expiry), ..in_progress() };
    let now = Timestamp::from_millis(1_000);
    for (expiry, expected) in [(i64::MIN, 1), (999, 1), (1_000, 1), (1_001, 1), (1_002, 1), (1_003, 2), (5_000, 3_999)]
    {
        assert_eq!(time_to_live(&with(expiry), now), expected);
    }
    assert_eq!(time_to_live(&with(i64::MAX), now), FOREVER - 1_001);
}
