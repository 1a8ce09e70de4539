//! What is done to many records at a time.

use idem_core::{Key, Lapsed, Scope, StoreError, StoreErrorKind};

use crate::{
    PostgresStore,
    error::store_error,
    records::{self, AFTER_RECORD, column},
};

/// How many rows a statement removes at most.
const BATCH: usize = 1_000;

impl PostgresStore {
    /// Removes expired records, a statement for each batch, so that no transaction grows long.
    pub(crate) async fn sweep_in_batches(&self, limit: usize) -> Result<usize, StoreError> {
        let mut removed = 0;
        while removed < limit {
            let batch = BATCH.min(limit - removed);
            let size = i64::try_from(batch).unwrap_or(i64::MAX);
            let rows = self.rows("sweep", &self.inner.statements.sweep, &[&size, &self.now()]).await?;
            let Some(row) = rows.first() else { break };
            let (gone, filed) = (count(column(row, 0, "sweep")?), count(column(row, 1, "sweep")?));
            removed += gone;
            if gone + filed < batch {
                break;
            }
        }
        Ok(removed)
    }

    /// Looks through the table a page at a time, in the order of its key.
    pub(crate) async fn lapsed_by_pages(
        &self,
        after: Option<(&Scope, &Key)>,
        limit: usize,
    ) -> Result<Vec<Lapsed>, StoreError> {
        const OPERATION: &str = "lapsed";
        // No key is empty, so this is before all of them.
        let mut behind = match after {
            Some((scope, key)) => (scope.as_str().to_owned(), key.as_str().to_owned()),
            None => (String::new(), String::new()),
        };
        let mut lapsed = Vec::new();
        loop {
            let left = i64::try_from(limit - lapsed.len()).unwrap_or(i64::MAX);
            let now = self.now();
            let statement = &self.inner.statements.lapsed;
            let rows = self.rows(OPERATION, statement, &[&behind.0, &behind.1, &left, &now]).await?;
            let mut page_end = None;
            for row in &rows {
                let (scope, key): (&str, &str) =
                    (column(row, AFTER_RECORD, OPERATION)?, column(row, AFTER_RECORD + 1, OPERATION)?);
                if column(row, 0, OPERATION)? {
                    let name =
                        |_| store_error(StoreErrorKind::Corrupt, OPERATION, "a row's scope or key is not a name");
                    lapsed.push(Lapsed {
                        scope: Scope::from_stored(scope).map_err(name)?,
                        key: Key::new(key).map_err(name)?,
                        record: records::record(row, OPERATION)?,
                    });
                } else {
                    page_end = Some((scope.to_owned(), key.to_owned()));
                }
            }
            match page_end {
                Some(end) if lapsed.len() < limit => behind = end,
                _ => return Ok(lapsed),
            }
        }
    }

    /// Removes a scope's records, a statement for each batch.
    pub(crate) async fn purge_in_batches(&self, scope: &Scope, limit: usize) -> Result<usize, StoreError> {
        let mut removed = 0;
        while removed < limit {
            let batch = BATCH.min(limit - removed);
            let size = i64::try_from(batch).unwrap_or(i64::MAX);
            let gone = self.rows("purge", &self.inner.statements.purge, &[&scope.as_str(), &size]).await?.len();
            removed += gone;
            if gone > 0 {
                self.inner.waiters.wake_everybody();
            }
            if gone < batch {
                break;
            }
        }
        Ok(removed)
    }
}

fn count(rows: i64) -> usize {
    usize::try_from(rows).unwrap_or(0)
}
