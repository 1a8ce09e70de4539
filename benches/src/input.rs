//! What is claimed and recorded: the same for every backend.

use std::sync::atomic::{AtomicU64, Ordering};

use idem_core::{Claim, Fingerprint, Key, Response, Scope, Token};

use crate::Failure;

/// Numbers that look random, the same in every run.
fn scrambled(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number that was not given before.
fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A claim of a key that was never used, 32 hexadecimal digits in no order, as UUIDs have none.
pub(crate) fn claim(scope: &str) -> Result<Claim, Failure> {
    let number = fresh();
    let key = format!("{:016x}{:016x}", scrambled(2 * number), scrambled(2 * number + 1));
    Ok(Claim::new(Scope::new(scope)?, Key::new(&key)?, token(), fingerprint("a payment of 20 EUR")?))
}

/// So many of them.
pub(crate) fn claims(scope: &str, count: usize) -> Result<Vec<Claim>, Failure> {
    (0..count).map(|_| claim(scope)).collect()
}

/// Another claim of the same key for the same request: a retry.
pub(crate) fn retry(of: &Claim) -> Claim {
    Claim::new(of.scope().clone(), of.key().clone(), token(), of.fingerprint().clone())
}

/// The same under another key.
pub(crate) fn retry_under(of: &Claim, key: &str) -> Result<Claim, Failure> {
    Ok(Claim::new(of.scope().clone(), Key::new(key)?, token(), of.fingerprint().clone()))
}

/// A claim of the same key for another request.
pub(crate) fn reuse(of: &Claim) -> Result<Claim, Failure> {
    let fingerprint = fingerprint("a payment of 21 EUR")?;
    Ok(Claim::new(of.scope().clone(), of.key().clone(), token(), fingerprint))
}

/// What the HTTP layer makes of a request has four parts too.
fn fingerprint(body: &str) -> Result<Fingerprint, Failure> {
    let parts = Fingerprint::builder().part("method", "POST").part("path", "/payments");
    Ok(parts.part("content-type", "application/json").part("body", body).build()?)
}

fn token() -> Token {
    let number = fresh();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&scrambled(!number).to_be_bytes());
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    Token::from_bytes(bytes)
}

/// A response whose body has that many bytes, which nothing can compress.
pub(crate) fn response(body: usize) -> Response {
    let number = fresh();
    let bytes: Vec<u8> = (0..body.div_ceil(8) as u64)
        .flat_map(|word| scrambled(number.wrapping_mul(1 << 20) ^ word).to_be_bytes())
        .take(body)
        .collect();
    Response::new(201)
        .with_header("content-type", "application/json")
        .with_header("location", "/payments/1")
        .with_body(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_claims_have_a_key_or_token_in_common() {
        let claims: Vec<Claim> = (0..1000).map(|_| claim("s").unwrap()).collect();
        assert_eq!(claims.iter().map(|claim| claim.key().clone()).collect::<HashSet<_>>().len(), 1000);
        let tokens: HashSet<Token> = claims.iter().flat_map(|claim| [claim.token(), retry(claim).token()]).collect();
        assert_eq!(tokens.len(), 2000);
    }

    #[test]
    fn a_retry_is_accepted_and_a_reuse_is_not() {
        let first = claim("s").unwrap();
        assert!(retry(&first).accepts(first.fingerprint()));
        assert!(!reuse(&first).unwrap().accepts(first.fingerprint()));
    }
}
