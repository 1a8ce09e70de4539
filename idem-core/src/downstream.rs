//! Keys for the services that an operation calls.

use sha2::{Digest, Sha256};

const LABEL: &[u8] = b"idem.downstream.1:";

/// The idempotency key to send to another service with one step of an operation.
///
/// It depends on the scope, the key and the name of the step, and on nothing else: every attempt of the operation sends
/// the same, so the other service can tell a repeat. It is `idem-` and 64 hexadecimal digits, 69 ASCII characters in
/// all, and shows nothing of its inputs: SHA-256 over `"idem.downstream.1:"` and the three strings, each behind its
/// length as 8 bytes, big endian.
pub fn downstream_key(scope: &str, key: &str, step: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(LABEL);
    for input in [scope, key, step] {
        hash.update((input.len() as u64).to_be_bytes());
        hash.update(input);
    }
    let mut out = String::from("idem-");
    for byte in hash.finalize() {
        out.push_str(&format!("{byte:02x}"));
    }
    out
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
    }

    #[test]
    fn each_input_counts_and_where_it_ends() {
        let keys = [
            downstream_key("ab", "cd", "ef"),
            downstream_key("a", "bcd", "ef"),
            downstream_key("abc", "d", "ef"),
            downstream_key("ab", "c", "def"),
            downstream_key("ab", "cde", "f"),
            downstream_key("ab", "cdef", ""),
            downstream_key("", "abcd", "ef"),
            downstream_key("cd", "ab", "ef"),
            downstream_key("ab", "cd", "eg"),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(key.is_ascii() && key.len() == 69);
            assert!(!keys[..index].contains(key));
        }
    }
}
