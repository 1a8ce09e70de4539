use proptest::prelude::*;

use super::*;

fn full(state: State) -> Record {
    Record {
        state,
        token: Token::from_bytes(*b"0123456789abcdef"),
        number: 3,
        origin: Origin::Takeover,
        repeat: true,
        lapses: 2,
        fingerprint: Some(Fingerprint::builder().part("body", "x").build().unwrap()),
        lease_end: Timestamp::from_millis(30_000),
        claimed: Timestamp::from_millis(-1),
        settled: Some(Timestamp::from_millis(20_000)),
        expiry: Timestamp::from_millis(i64::MAX),
        on_lapse: OnLapse::Hold,
        started: true,
        checkpoints: Checkpoints::default().with("charge", &Bytes::from_static(b"\0\xff")).with("mail", &Bytes::new()),
    }
}

// cases 014, 128
#[test]
fn a_record_comes_back_with_every_field_in_every_state() {
    let done = State::Done(Response::new(201).with_body("{}"));
    for state in [State::InProgress, State::Released, State::Held, done] {
        let record = full(state);
        assert_eq!(Record::decode(record.encode()).unwrap(), record);
    }
    let bare =
        Record { fingerprint: None, settled: None, checkpoints: Checkpoints::default(), ..full(State::Released) };
    assert_eq!(Record::decode(bare.encode()).unwrap(), bare);
}

#[test]
fn format_1_stays_readable_for_ever() {
    let stored = b"\x01\x00\
        0123456789abcdef\
        \0\0\0\x03\x02\x01\0\0\0\x02\x01\x01\
        \0\0\0\0\0\0\x75\x30\xff\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\
        \x01\0\0\0\0\0\0\x4e\x20\
        \0\0\0\0\
        \0\0\0\x02\0\0\0\x06charge\0\0\0\x02\0\xff\0\0\0\x04mail\0\0\0\0";
    let record = Record { fingerprint: None, ..full(State::InProgress) };
    assert_eq!(record.encode(), stored);
    assert_eq!(Record::decode(&stored[..]).unwrap(), record);
}

#[test]
fn a_newer_format_is_refused_and_not_guessed() {
    let mut bytes = full(State::Held).encode();
    bytes[0] = 2;
    let error = Record::decode(bytes).unwrap_err();
    assert_eq!(error, DecodeError::Newer { what: "a stored record", found: 2, known: 1 });
}

#[test]
fn a_fingerprint_of_a_newer_scheme_is_refused_and_not_called_damage() {
    let record = full(State::Held);
    let mut bytes = record.encode();
    let fingerprint = record.fingerprint.unwrap();
    let at = bytes.windows(fingerprint.as_bytes().len()).position(|w| w == fingerprint.as_bytes()).unwrap();
    bytes[at] = 2;
    let error = Record::decode(bytes).unwrap_err();
    assert_eq!(error, DecodeError::Newer { what: "a stored fingerprint", found: 2, known: 1 });
}

#[test]
fn a_record_cut_short_or_followed_by_more_is_refused() {
    let bytes = full(State::Done(Response::new(200))).encode();
    for end in 0..bytes.len() {
        assert!(Record::decode(bytes[..end].to_vec()).is_err(), "cut at {end}");
    }
    assert!(Record::decode([&bytes[..], b"x"].concat()).is_err());
}

#[test]
fn debug_never_shows_a_token_a_fingerprint_or_a_body_in_full() {
    let shown = format!("{:?}", full(State::Done(Response::new(200).with_body("secret"))));
    for hidden in ["0123456789abcdef", "secret"] {
        assert!(!shown.contains(hidden), "{shown}");
    }
}

#[test]
fn checkpoints_are_made_of_names_and_values_and_the_first_value_of_a_name_stays() {
    let given = [("charge", "ch_1"), ("mail", "sent"), ("charge", "ch_2")];
    let made: Checkpoints = given.into_iter().map(|(name, value)| (name.to_owned(), Bytes::from(value))).collect();
    let kept: Vec<_> = made.iter().map(|(name, value)| (name, &value[..])).collect();
    assert_eq!(kept, [("charge", &b"ch_1"[..]), ("mail", b"sent")]);
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Record::decode(bytes);
    }
}

#[test]
fn a_flipped_bit_is_refused_or_read_as_a_record_that_says_so() {
    let bytes = full(State::Held).encode();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(record) = Record::decode(flipped.clone()) {
            assert_eq!(record.encode(), flipped, "bit {bit}");
        }
    }
}
