//! Statements over many records: sweep, lapsed, purge.

use idem_core::{Key, Lapsed, Scope, StoreError, StoreErrorKind, Timestamp};
use rusqlite::{Connection, params};

use crate::{
    error::{sqlite_error, store_error},
    records,
};

/// The most rows that one transaction removes, so that operations never wait for a long one.
pub(crate) const BATCH: usize = 256;

/// ?1 now: a record is live while now < expiry. ?2 how many at most.
const SWEEP: &str = "
    DELETE FROM main.idem_records WHERE id IN (
        SELECT id FROM main.idem_records WHERE expiry <= ?1 ORDER BY expiry LIMIT ?2)";

/// ?1 the scope, ?2 how many at most.
const PURGE: &str = "
    DELETE FROM main.idem_records WHERE id IN (
        SELECT id FROM main.idem_records WHERE scope = ?1 LIMIT ?2)";

/// ?1 and ?2 the scope and key behind which it begins, ?3 now, ?4 how many at most. States 0 and 2 are in progress and
/// held, written as in the partial index so that it is used.
const LAPSED: &str = "
    SELECT id, scope, key, record FROM main.idem_records
    WHERE state IN (0, 2) AND (scope, key) > (?1, ?2) AND (state = 2 OR lease_end <= ?3) AND expiry > ?3
    ORDER BY scope, key LIMIT ?4";

/// Removes at most `limit` expired records.
pub(crate) fn sweep(connection: &Connection, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
    connection
        .prepare_cached(SWEEP)
        .and_then(|mut sweep| sweep.execute(params![now.as_millis(), count(limit)]))
        .map_err(|error| sqlite_error("sweep", error))
}

/// Removes at most `limit` records of the scope.
pub(crate) fn purge(connection: &Connection, scope: &Scope, limit: usize) -> Result<usize, StoreError> {
    connection
        .prepare_cached(PURGE)
        .and_then(|mut purge| purge.execute(params![scope.as_str(), count(limit)]))
        .map_err(|error| sqlite_error("purge", error))
}

/// At most `limit` live records that wait for someone, in order of scope and key, behind `after`.
pub(crate) fn lapsed(
    connection: &Connection,
    after: Option<&(Scope, Key)>,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Lapsed>, StoreError> {
    // No key is empty, so every record is behind two empty strings.
    let (scope, key) = after.map_or(("", ""), |(scope, key)| (scope.as_str(), key.as_str()));
    let failed = |error| sqlite_error("lapsed", error);
    let mut statement = connection.prepare_cached(LAPSED).map_err(failed)?;
    let mut rows = statement.query(params![scope, key, now.as_millis(), count(limit)]).map_err(failed)?;
    let mut lapsed = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let id = row.get(0).map_err(failed)?;
        let scope: String = row.get(1).map_err(failed)?;
        let key: String = row.get(2).map_err(failed)?;
        let bytes = row.get(3).map_err(failed)?;
        lapsed.push(Lapsed {
            scope: Scope::from_stored(&scope).map_err(|error| unnamed(id, error.to_string()))?,
            key: Key::new(&key).map_err(|error| unnamed(id, error.to_string()))?,
            record: records::decode("lapsed", id, bytes)?.record,
        });
    }
    Ok(lapsed)
}

fn unnamed(id: i64, problem: String) -> StoreError {
    let message = format!("row {id} of idem_records has a scope or key that is none: {problem}");
    store_error(StoreErrorKind::Corrupt, "lapsed", message)
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Instant};

    use super::*;
    use crate::schema;

    // case 123
    #[test]
    fn every_statement_over_many_records_walks_an_index() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection, Path::new("memory"), Instant::now()).unwrap();
        for (sql, index) in [
            (SWEEP, "idem_records_expiry (expiry<?)"),
            (PURGE, "sqlite_autoindex_idem_records_1 (scope=?)"),
            (LAPSED, "idem_records_open ((scope,key)>(?,?))"),
        ] {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let parameters = vec![0; plan.parameter_count()];
            let steps: Vec<String> = plan
                .query_map(rusqlite::params_from_iter(parameters), |row| row.get(3))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            assert!(steps.iter().any(|step| step.contains(index)), "{sql}\n{steps:?}");
            assert!(!steps.iter().any(|step| step.contains("SCAN") || step.contains("B-TREE")), "{sql}\n{steps:?}");
        }
    }
}
