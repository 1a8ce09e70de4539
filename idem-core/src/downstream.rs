//! Keys for the services that an operation calls.

use sha2::{Digest, Sha256};

const LABEL: &[u8] = b"idem.downstream.1:";
const UUID_LABEL: &[u8] = b"idem.downstream-uuid.1:";

/// The idempotency key to send to another service with one step of an operation.
///
/// It depends on the scope, the key and the name of the step, and on nothing else: every attempt of the operation sends
/// the same, so the other service can tell a repeat. It is `idem-` and 64 hexadecimal digits, 69 ASCII characters in
/// all, and shows nothing of its inputs: SHA-256 over `"idem.downstream.1:"` and the three strings, each behind its
/// length as 8 bytes, big endian.
///
/// Stripe takes 255 characters. Others take fewer, which [`downstream_uuid`] is for. Look up for how long a provider
/// remembers a key, too: a repeat that comes later than that is a new operation to it.
pub fn downstream_key(scope: &str, key: &str, step: &str) -> String {
    let mut out = String::from("idem-");
    hex(&mut out, &digest(LABEL, [scope, key, step]));
    out
}

/// The same as a UUID, for services that take no other, or no longer one: Helcim wants a UUID, Worldline takes 40 characters,
/// Amazon Pay 32 (leave out the hyphens).
///
/// 36 ASCII characters, of version 8 (RFC 9562), whose 122 free bits are of a SHA-256 like that of [`downstream_key`],
/// over `"idem.downstream-uuid.1:"` instead: the two of one step have nothing in common. It depends on the same inputs and on
/// nothing else.
pub fn downstream_uuid(scope: &str, key: &str, step: &str) -> String {
    let digest = digest(UUID_LABEL, [scope, key, step]);
    let mut out = String::with_capacity(36);
    for (at, byte) in digest.into_iter().take(16).enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        let byte = match at {
            6 => byte & 0x0f | 0x80, // the version
            8 => byte & 0x3f | 0x80, // the variant
            _ => byte,
        };
        hex(&mut out, &[byte]);
    }
    out
}

fn digest(label: &[u8], inputs: [&str; 3]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(label);
    for input in inputs {
        hash.update((input.len() as u64).to_be_bytes());
        hash.update(input);
    }
    hash.finalize().into()
}

fn hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        out.push_str(&format!("{byte:02x}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_never_changes_between_releases() {
        // Computed with Python's hashlib from the description above.
        assert_eq!(
            downstream_key("tenant-1", "order-42", "charge"),
            "idem-6b90fdb7f32d888607f6fc8ae06b06fb5a1e647c8cd8a31ca32788e88e2a92e9"
        );
        assert_eq!(downstream_key("", "", ""), "idem-e9634938d03a10f93954b7a5509bc4942213e9fd3689f4eaa0c2cc970343c6e0");
        assert_eq!(downstream_uuid("tenant-1", "order-42", "charge"), "72e2b8c7-bf32-802f-9d75-0906cb0ea2ce");
        assert_eq!(downstream_uuid("", "", ""), "802e2d82-fe6c-846c-a457-d7a92d7aa092");
    }

    #[test]
    fn each_input_counts_and_where_it_ends() {
        let inputs = [
            ["ab", "cd", "ef"],
            ["a", "bcd", "ef"],
            ["abc", "d", "ef"],
            ["ab", "c", "def"],
            ["ab", "cde", "f"],
            ["ab", "cdef", ""],
            ["", "abcd", "ef"],
            ["cd", "ab", "ef"],
            ["ab", "cd", "eg"],
        ];
        let mut keys = Vec::new();
        for [scope, key, step] in inputs {
            let (long, uuid) = (downstream_key(scope, key, step), downstream_uuid(scope, key, step));
            assert!(long.is_ascii() && long.len() == 69);
            assert!(uuid.is_ascii() && uuid.len() == 36, "{uuid}");
            let shape: String = uuid.chars().map(|c| if c.is_ascii_hexdigit() { 'x' } else { c }).collect();
            assert_eq!(shape, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx");
            assert!(uuid.as_bytes()[14] == b'8' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
            for one in [long, uuid] {
                assert!(!keys.contains(&one));
                keys.push(one);
            }
        }
    }
}
