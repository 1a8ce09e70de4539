#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn key(id: &str, byte: u8) -> SealKey {
    SealKey::new(id, &[byte; 32]).unwrap()
}

fn changed(sealed: &Sealed, at: usize) -> Sealed {
    let mut bytes = sealed.bytes.to_vec();
    bytes[at] ^= 1;
    Sealed { bytes: bytes.into(), ..sealed.clone() }
}

#[test]
fn what_was_sealed_is_opened_and_can_not_be_read_before() {
    let keys = SealKeys::new(key("a", 1));
    for plain in [&b""[..], b"4111 1111 1111 1111", &[0; 100_000]] {
        let sealed = keys.seal(plain, b"here").unwrap();
        assert_eq!(keys.open(&sealed, b"here").unwrap(), plain);
        assert_eq!(sealed.bytes.len(), plain.len() + 1 + 24 + 16);
        assert!(plain.is_empty() || !sealed.bytes.windows(plain.len()).any(|window| window == plain));
    }
}

#[test]
fn the_same_is_never_sealed_to_the_same_bytes() {
    let keys = SealKeys::new(key("a", 1));
    assert_ne!(keys.seal(b"same", b"here").unwrap(), keys.seal(b"same", b"here").unwrap());
}

#[test]
fn it_is_opened_only_where_it_belongs_whole_and_under_its_own_key() {
    let keys = SealKeys::new(key("a", 1)).accepting(key("b", 2)).unwrap();
    let sealed = keys.seal(b"secret", b"here").unwrap();
    let refused = |sealed: &Sealed, bound_to: &[u8]| keys.open(sealed, bound_to).unwrap_err();
    assert!(matches!(refused(&sealed, b"there"), SealError::NotAuthentic { .. }));
    for at in 1..sealed.bytes.len() {
        assert!(matches!(refused(&changed(&sealed, at), b"here"), SealError::NotAuthentic { .. }), "byte {at}");
    }
    for length in 1..sealed.bytes.len() {
        let cut = Sealed { bytes: sealed.bytes.slice(..length), ..sealed.clone() };
        assert!(matches!(refused(&cut, b"here"), SealError::NotAuthentic { .. }), "{length} bytes");
    }
    let renamed = Sealed { key_id: "b".into(), ..sealed.clone() };
    assert!(matches!(refused(&renamed, b"here"), SealError::NotAuthentic { .. }));
    assert!(matches!(refused(&changed(&sealed, 0), b"here"), SealError::Failed(_)), "a newer format is not guessed");
    let empty = Sealed { bytes: Default::default(), ..sealed };
    assert!(matches!(refused(&empty, b"here"), SealError::NotAuthentic { .. }));
}

#[test]
fn after_a_change_of_keys_the_older_ones_still_open_until_they_are_dropped() {
    let old = SealKeys::new(key("2026-11", 11));
    let sealed = old.seal(b"secret", b"here").unwrap();
    let both = SealKeys::new(key("2026-12", 12)).accepting(key("2026-11", 11)).unwrap();
    assert_eq!(both.open(&sealed, b"here").unwrap(), b"secret");
    assert_eq!(both.seal(b"secret", b"here").unwrap().key_id, "2026-12");

    let new = SealKeys::new(key("2026-12", 12));
    let error = new.open(&sealed, b"here").unwrap_err();
    assert!(matches!(&error, SealError::UnknownKey { key_id } if key_id == "2026-11"), "{error}");
    let wrong = SealKeys::new(key("2026-11", 13)).open(&sealed, b"here").unwrap_err();
    assert!(wrong.to_string().contains("the secret is another one"), "{wrong}");
}

#[test]
fn under_one_secret_neither_the_id_nor_what_it_is_bound_to_can_be_exchanged() {
    let keys = SealKeys::new(key("a", 1)).accepting(key("b", 1)).unwrap().accepting(key("ab", 1)).unwrap();
    for (id, bound_to) in [("b", "bhere"), ("ab", "here")] {
        let renamed = Sealed { key_id: id.into(), ..keys.seal(b"secret", b"bhere").unwrap() };
        let refused = keys.open(&renamed, bound_to.as_bytes()).unwrap_err();
        assert!(matches!(refused, SealError::NotAuthentic { .. }), "{id}");
    }
}

/// What was sealed before an upgrade must be opened after it.
#[test]
fn what_the_first_version_sealed_is_opened() {
    let digits = "019c340330b90a0fdc6fc11165ee28f2c53b6d8e025d9621e932495223ec4f1babcf09f3be7da0be96121a0b8487ad";
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    let sealed = Sealed { key_id: "2026-12".into(), bytes: bytes.into() };
    assert_eq!(SealKeys::new(key("2026-12", 12)).open(&sealed, b"here").unwrap(), b"secret");
}

#[test]
fn each_of_many_older_keys_opens_what_it_sealed() {
    let ids = ["a", "b", "c", &"x".repeat(64)];
    let mut keys = SealKeys::new(key("new", 99));
    for (n, id) in ids.iter().enumerate() {
        keys = keys.accepting(key(id, n as u8)).unwrap();
    }
    for (n, id) in ids.iter().enumerate() {
        let sealed = SealKeys::new(key(id, n as u8)).seal(b"secret", b"here").unwrap();
        assert_eq!(keys.open(&sealed, b"here").unwrap(), b"secret", "{id}");
    }
}

#[test]
fn ids_are_visible_and_name_one_key_each_and_secrets_are_never_shown() {
    for id in ["", "two words", "é", &"x".repeat(65)] {
        assert_eq!(SealKey::new(id, &[1; 32]).unwrap_err(), InvalidSealKey::Id, "{id}");
    }
    let twice = SealKeys::new(key("a", 1)).accepting(key("b", 2)).unwrap().accepting(key("b", 3));
    assert_eq!(twice.unwrap_err(), InvalidSealKey::Twice { id: "b".into() });
    assert_eq!(format!("{:?}", key("a", 77)), r#"SealKey { id: "a", .. }"#);
}
