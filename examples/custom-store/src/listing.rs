//! Many records at a time: sweep, purge, lapsed. Each walks a range of a table and stops at its limit.

use std::ops::Bound;

use idem_core::{Key, Lapsed, Scope, StoreErrorKind, Timestamp};
use redb::{ReadTransaction, ReadableTable};

use crate::{
    error::{Failure, store_error},
    records::{OPEN, RECORDS, Tables, decode},
};

/// The most records that one transaction removes, so that other operations never wait for a long one.
pub(crate) const BATCH: usize = 256;

/// Removes at most `limit` expired records, those that expired first.
pub(crate) fn sweep(tables: &mut Tables<'_>, now: Timestamp, limit: usize) -> Result<usize, Failure> {
    let mut expired = Vec::new();
    for entry in tables.expiries.range::<(i64, &str, &str)>(..)? {
        let entry = entry?.0;
        let (expiry, scope, key) = entry.value();
        // A record is live while now < expiry.
        if expiry > now.as_millis() || expired.len() == limit {
            break;
        }
        expired.push((scope.to_owned(), key.to_owned()));
    }
    remove(tables, &expired)
}

/// Removes at most `limit` records of the scope.
pub(crate) fn purge(tables: &mut Tables<'_>, scope: &Scope, limit: usize) -> Result<usize, Failure> {
    let mut purged = Vec::new();
    // No key is empty: every record of the scope is behind the empty one, and before those of the next scope.
    for entry in tables.records.range((scope.as_str(), "")..)? {
        let entry = entry?.0;
        let (found, key) = entry.value();
        if found != scope.as_str() || purged.len() == limit {
            break;
        }
        purged.push((found.to_owned(), key.to_owned()));
    }
    remove(tables, &purged)
}

fn remove(tables: &mut Tables<'_>, names: &[(String, String)]) -> Result<usize, Failure> {
    for (scope, key) in names {
        tables.remove(scope, key)?;
    }
    Ok(names.len())
}

/// At most `limit` live records that wait for someone, in the order of scope and key, behind `after`. It looks at those
/// that are in progress or held, and at no other.
pub(crate) fn lapsed(
    transaction: &ReadTransaction,
    after: Option<&(Scope, Key)>,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Lapsed>, Failure> {
    let (open, records) = (transaction.open_table(OPEN)?, transaction.open_table(RECORDS)?);
    let behind = after.map_or(Bound::Unbounded, |(scope, key)| Bound::Excluded((scope.as_str(), key.as_str())));
    let mut lapsed = Vec::new();
    for entry in open.range((behind, Bound::Unbounded))? {
        if lapsed.len() == limit {
            break;
        }
        let (name, waits_from) = entry?;
        if waits_from.value() > now.as_millis() {
            continue;
        }
        // Written and removed together with the entry.
        let Some(stored) = records.get(name.value())? else { continue };
        let (expiry, bytes) = stored.value();
        if expiry > now.as_millis() {
            let (scope, key) = named(name.value())?;
            let record = decode("lapsed", (&scope, &key), bytes)?;
            lapsed.push(Lapsed { scope, key, record });
        }
    }
    Ok(lapsed)
}

fn named((scope, key): (&str, &str)) -> Result<(Scope, Key), Failure> {
    let invalid = |error| {
        let message = format!("an entry of idem_open has a scope or key that is none: {error}; restore the file");
        store_error(StoreErrorKind::Corrupt, "lapsed", message)
    };
    Ok((Scope::from_stored(scope).map_err(invalid)?, Key::new(key).map_err(invalid)?))
}
