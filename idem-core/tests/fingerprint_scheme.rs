//! The scheme: golden values, the stored form, and what the builder and the keys refuse.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic as tests do")]

use idem_core::{
    Differences, FieldSelector, Fingerprint, FingerprintKey, InvalidFingerprint, InvalidFingerprintKey, InvalidParts,
};

fn key(id: &str) -> FingerprintKey {
    FingerprintKey::new(id, b"0123456789abcdef").unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unkeyed() -> Fingerprint {
    Fingerprint::builder().part("method", "POST").json("body", r#"{"b": 2.50, "a": "x"}"#).build().unwrap()
}

fn keyed(id: &str) -> Fingerprint {
    Fingerprint::keyed(&key(id)).part("method", "POST").json("body", r#"{"b": 2.50, "a": "x"}"#).build().unwrap()
}

/// The expected bytes were computed with Python's hashlib and hmac from the description of the scheme. If one of these
/// tests fails, stored fingerprints of earlier releases no longer match: that needs a new scheme version.
mod the_bytes_never_change_within_a_scheme {
    use super::*;

    #[test]
    fn unkeyed_json() {
        assert_eq!(
            hex(unkeyed().as_bytes()),
            concat!(
                "01003cb3f6e7db74a6dac9fd8d2cead91df6e6fd2d93f6185cb4cde0a29c997f2b790204626f64797c203bad1c0e7ad5",
                "0000000000000015066d6574686f648055f7af3b9829ea0000000000000004"
            )
        );
    }

    #[test]
    fn keyed_json() {
        assert_eq!(
            hex(keyed("k1").as_bytes()),
            concat!(
                "01026b31351939ab9a95a1567893c2c97c1436f6e8b16a56db11901e490dd1288736087e0204626f64792ef42dd6447b",
                "9da10000000000000015066d6574686f641ac529bc52fc80850000000000000004"
            )
        );
    }

    #[test]
    fn the_other_kinds() {
        let fields = FieldSelector::new(&["/b", "/a"]).unwrap();
        let fingerprint = Fingerprint::builder()
            .json("bad json", "{")
            .selected("fields", r#"{"a": 1.0, "z": 3}"#, &fields)
            .selected("no field", "[]", &fields)
            .part("é", [0, 255])
            .build()
            .unwrap();
        assert_eq!(
            hex(fingerprint.as_bytes()),
            concat!(
                "01007bda188ff23d47f8ececa5a5c7dc25eea520407350690cb310b87acf85ab91640408626164206a736f6ec06ad2ac",
                "437e83e60000000000000001066669656c6473c7a51fd5a52ac0ae0000000000000012086e6f206669656c64092e508e",
                "b39cfd1e000000000000000202c3a97598a9a83f2606580000000000000002"
            )
        );
    }
}

#[test]
fn no_two_sets_of_parts_collide() {
    let document = "{\"a\":1}";
    let fields = FieldSelector::new(&["/a"]).unwrap();
    let whole = FieldSelector::new(&[""]).unwrap();
    let other = FieldSelector::new(&["/b"]).unwrap();
    let new = Fingerprint::builder;
    let all = [
        new().part("a", "xy").part("b", "z"),
        new().part("a", "x").part("b", "yz"),
        new().part("a", "xyz").part("b", ""),
        new().part("a", "xyz"),
        new().part("ax", "yz"),
        new().part("a", "z").part("b", "xy"),
        new().part("a", "xy").part("c", "z"),
        new().part("a", ""),
        new().part("a", document),
        new().json("a", document),
        new().json("a", "{"),
        new().part("a", "{"),
        new().selected("a", document, &fields),
        new().selected("a", document, &whole),
        new().selected("a", document, &other),
        new().selected("a", "{", &other),
        Fingerprint::keyed(&key("k")).part("a", "xy").part("b", "z"),
        Fingerprint::keyed(&FingerprintKey::new("k", b"another secret of ours").unwrap())
            .part("a", "xy")
            .part("b", "z"),
    ]
    .map(|builder| builder.build().unwrap());
    for (index, left) in all.iter().enumerate() {
        assert!(left.matches(left));
        for right in &all[..index] {
            assert!(!left.matches(right), "{left:?} {right:?}");
            assert_ne!(left.differences(right), Differences::Parts(vec![]));
        }
    }
}

#[test]
fn the_order_of_the_calls_does_not_matter() {
    let left = Fingerprint::builder().part("a", "1").part("b", "2");
    let right = Fingerprint::builder().part("b", "2").part("a", "1");
    assert_eq!(left.build(), right.build());
}

#[test]
fn differences_name_each_part_that_differs() {
    // case 032: the key of a create was sent with a delete
    let stored =
        Fingerprint::builder().part("method", "POST").part("target", "/tables").part("type", "json").part("same", "1");
    let given = Fingerprint::builder()
        .part("method", "PUTS")
        .part("target", "/tables/7")
        .part("same", "1")
        .part("version", "2");
    let (stored, given) = (stored.build().unwrap(), given.build().unwrap());
    assert_eq!(
        stored.differences(&given).to_string(),
        "method differs, target length differs: 7 -> 9, type is missing, version was absent before"
    );
    let Differences::Parts(parts) = stored.differences(&given) else {
        panic!("comparable");
    };
    let lengths: Vec<_> = parts.iter().map(|part| (part.stored_len(), part.given_len())).collect();
    assert_eq!(lengths, [(Some(4), Some(4)), (Some(7), Some(9)), (Some(4), None), (None, Some(1))]);
    assert_eq!(stored.differences(&stored).to_string(), "no part differs");
}

#[test]
fn fingerprints_of_different_keys_cannot_be_compared() {
    for (left, right) in [(unkeyed(), keyed("k1")), (keyed("k1"), unkeyed()), (keyed("k1"), keyed("k2"))] {
        assert!(!left.matches(&right));
        assert_eq!(left.differences(&right), Differences::Incomparable);
        assert!(left.differences(&right).to_string().contains("cannot be compared"));
    }
    assert!(keyed("k1").matches(&keyed("k1")));
    assert_eq!((unkeyed().key_id(), keyed("k1").key_id()), (None, Some("k1")));
    assert_eq!((unkeyed().scheme(), keyed("k1").scheme()), (1, 1));
}

// case 036
#[test]
fn a_keyed_fingerprint_holds_no_unkeyed_digest_and_debug_tells_no_secret() {
    let (open, closed) = (unkeyed(), keyed("k1"));
    // The digest, and the short digests of body and method.
    for start in [2, 40, 63] {
        let digest = &open.as_bytes()[start..start + 8];
        assert!(closed.as_bytes().windows(8).all(|window| window != digest));
    }

    assert_eq!(format!("{:?}", key("k1")), "FingerprintKey { id: \"k1\", .. }");
    let shown = format!("{:?}", keyed("k1"));
    let digest = hex(&keyed("k1").as_bytes()[4..8]);
    assert_eq!(shown, format!("Fingerprint {{ scheme: 1, key_id: Some(\"k1\"), digest: {digest}… }}"));
}

#[test]
fn the_stored_form_is_read_strictly() {
    for fingerprint in [unkeyed(), keyed("k1")] {
        let stored = fingerprint.as_bytes();
        assert_eq!(Fingerprint::from_bytes(stored).as_ref(), Ok(&fingerprint));
        for end in 0..stored.len() {
            assert_eq!(Fingerprint::from_bytes(&stored[..end]), Err(InvalidFingerprint::Truncated));
        }
        let longer = [stored, &[0]].concat();
        assert_eq!(Fingerprint::from_bytes(&longer), Err(InvalidFingerprint::TrailingBytes { count: 1 }));
        for scheme in [0, 2, 255] {
            let other = [&[scheme], &stored[1..]].concat();
            assert_eq!(Fingerprint::from_bytes(&other), Err(InvalidFingerprint::UnknownScheme { scheme }));
        }
    }

    let form = |key_id: &[u8], names: &[&[u8]]| {
        let mut stored = vec![1, key_id.len() as u8];
        stored.extend_from_slice(key_id);
        stored.extend_from_slice(&[7; 32]);
        stored.push(names.len() as u8);
        for name in names {
            stored.push(name.len() as u8);
            stored.extend_from_slice(name);
            stored.extend_from_slice(&[7; 16]);
        }
        Fingerprint::from_bytes(&stored).map(|_| ())
    };
    assert_eq!(form(&[b'k'; 64], &[b"a", b"b"]), Ok(()));
    for key_id in [&[b'k'; 65][..], b"k k", b"\xff", b"\n"] {
        assert_eq!(form(key_id, &[b"a"]), Err(InvalidFingerprint::KeyId));
    }
    for names in [&[] as &[&[u8]], &[b""], &[b"b", b"a"], &[b"a", b"a"], &[b"\xff"], &[b"\0"]] {
        assert_eq!(form(b"", names), Err(InvalidFingerprint::Parts));
    }
}

#[test]
fn mistakes_in_the_parts_are_reported_when_built() {
    let new = Fingerprint::builder;
    assert_eq!(new().build(), Err(InvalidParts::Empty));
    let name = "body".to_string();
    assert_eq!(new().part("body", "1").part("a", "2").json("body", "3").build(), Err(InvalidParts::Duplicate { name }));
    for (bad, name) in [("", ""), ("a\nb", "a\nb"), (&*"é".repeat(128), &*"é".repeat(32))] {
        let name = name.to_string();
        assert_eq!(new().part(bad, "").part("ok", "").build(), Err(InvalidParts::Name { name }));
    }
    let first = InvalidParts::Name { name: String::new() };
    assert_eq!(new().part("", "").part("a\nb", "").build(), Err(first), "the first mistake is told");
    assert!(new().part(&"x".repeat(255), "").build().is_ok());

    let full = (0..255).fold(new(), |builder, n| builder.part(&n.to_string(), ""));
    let built = full.clone().build().unwrap();
    assert_eq!(Fingerprint::from_bytes(built.as_bytes()), Ok(built));
    assert_eq!(full.part("one more", "").build(), Err(InvalidParts::TooMany));
}

#[test]
fn mistakes_in_a_key_are_reported_when_made() {
    let secret = [7; 16];
    for id in ["", "a b", "é", "a\n", &"x".repeat(65)] {
        assert_eq!(FingerprintKey::new(id, &secret).err(), Some(InvalidFingerprintKey::Id));
    }
    assert_eq!(FingerprintKey::new("k", &secret[1..]).err(), Some(InvalidFingerprintKey::Secret { length: 15 }));
    assert!(FingerprintKey::new(&"x".repeat(64), &[7; 1000]).is_ok());
}
