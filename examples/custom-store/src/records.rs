//! The tables: finding and writing one record.
//!
//! The rules are the machine's alone. Whoever writes here is inside the one write transaction that redb allows at a time,
//! from before the look-up until the commit, so *find, decide, write* is one atomic step.

use idem_core::{Key, Record, Scope, State, machine::Decision};
use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use crate::{
    error::{Failure, undecodable},
    wait::{Bell, Bells},
};

/// Scope and key, which redb sorts by their bytes. No joined string: `a` and `bc` must not be `ab` and `c`.
pub(crate) type Name = (&'static str, &'static str);

/// Each record's expiry (in milliseconds since the Unix epoch) and what [`Record::encode`] gives. The expiry is repeated
/// so that a record can be swept or purged whose bytes can't be read.
pub(crate) const RECORDS: TableDefinition<'_, Name, (i64, &[u8])> = TableDefinition::new("idem_records");

/// The records that may wait for someone, with the instant from which they do: for listing without a walk through all.
pub(crate) const OPEN: TableDefinition<'_, Name, i64> = TableDefinition::new("idem_open");

/// Every record's expiry, scope and key: for sweeping in the order of expiries.
pub(crate) const EXPIRIES: TableDefinition<'_, (i64, &str, &str), ()> = TableDefinition::new("idem_expiries");

/// The tables within a write transaction, and what was changed in them.
pub(crate) struct Tables<'a> {
    pub(crate) records: Table<'a, Name, (i64, &'static [u8])>,
    pub(crate) expiries: Table<'a, (i64, &'static str, &'static str), ()>,
    open: Table<'a, Name, i64>,
    transaction: &'a WriteTransaction,
    bells: &'a Bells,
    changes: Changes,
}

/// What a transaction changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Whether there is anything to commit.
    pub(crate) any: bool,
    /// The bells to ring once it is committed.
    pub(crate) bells: Vec<Bell>,
}

impl<'a> Tables<'a> {
    pub(crate) fn of(transaction: &'a WriteTransaction, bells: &'a Bells) -> Result<Self, Failure> {
        Ok(Self {
            records: transaction.open_table(RECORDS)?,
            expiries: transaction.open_table(EXPIRIES)?,
            open: transaction.open_table(OPEN)?,
            transaction,
            bells,
            changes: Changes::default(),
        })
    }

    /// Closes the tables, which redb wants before a commit.
    pub(crate) fn close(self) -> Changes {
        self.changes
    }

    /// The transaction, for something that is to be committed with it.
    pub(crate) fn writing(&mut self) -> &WriteTransaction {
        self.changes.any = true;
        self.transaction
    }

    /// Finds the record, lets `decide` decide about it, and writes what that comes to.
    pub(crate) fn decide<A>(
        &mut self,
        operation: &'static str,
        (scope, key): (&Scope, &Key),
        decide: impl FnOnce(Option<&Record>) -> Decision<A>,
    ) -> Result<Decision<A>, Failure> {
        let found = self.find(operation, (scope, key))?;
        let decision = decide(found.as_ref());
        if let Some(record) = &decision.write {
            self.put((scope, key), record)?;
        }
        Ok(decision)
    }

    /// The record as it is stored, expired or not.
    pub(crate) fn find(&self, operation: &'static str, name: (&Scope, &Key)) -> Result<Option<Record>, Failure> {
        find(&self.records, operation, name)
    }

    pub(crate) fn put(&mut self, (scope, key): (&Scope, &Key), record: &Record) -> Result<(), Failure> {
        let (scope, key) = (scope.as_str(), key.as_str());
        let expiry = record.expiry.as_millis();
        let replaced = self.records.insert((scope, key), (expiry, record.encode().as_slice()))?;
        let filed = replaced.map(|replaced| replaced.value().0);
        if filed != Some(expiry) {
            if let Some(filed) = filed {
                self.expiries.remove((filed, scope, key))?;
            }
            self.expiries.insert((expiry, scope, key), ())?;
        }
        match waits_from(record) {
            Some(instant) => drop(self.open.insert((scope, key), instant)?),
            None => drop(self.open.remove((scope, key))?),
        }
        self.changed(scope, key);
        Ok(())
    }

    /// Removes a record, readable or not. Says whether there was one.
    pub(crate) fn remove(&mut self, scope: &str, key: &str) -> Result<bool, Failure> {
        let removed = self.records.remove((scope, key))?.map(|removed| removed.value().0);
        let Some(expiry) = removed else { return Ok(false) };
        self.expiries.remove((expiry, scope, key))?;
        self.open.remove((scope, key))?;
        self.changed(scope, key);
        Ok(true)
    }

    fn changed(&mut self, scope: &str, key: &str) {
        self.changes.any = true;
        self.changes.bells.push(self.bells.of(scope, key));
    }
}

/// The record as it was when the transaction began, expired or not.
pub(crate) fn read(
    transaction: &ReadTransaction,
    operation: &'static str,
    name: (&Scope, &Key),
) -> Result<Option<Record>, Failure> {
    find(&transaction.open_table(RECORDS)?, operation, name)
}

fn find(
    records: &impl ReadableTable<Name, (i64, &'static [u8])>,
    operation: &'static str,
    (scope, key): (&Scope, &Key),
) -> Result<Option<Record>, Failure> {
    let Some(stored) = records.get((scope.as_str(), key.as_str()))? else { return Ok(None) };
    decode(operation, (scope, key), stored.value().1).map(Some)
}

pub(crate) fn decode(operation: &'static str, (scope, key): (&Scope, &Key), bytes: &[u8]) -> Result<Record, Failure> {
    Record::decode(bytes.to_vec()).map_err(|error| undecodable(operation, scope, key, error).into())
}

/// The instant from which the record waits for someone, unless it changes: none if it never does.
fn waits_from(record: &Record) -> Option<i64> {
    match record.state {
        State::Held => Some(i64::MIN),
        State::InProgress => Some(record.lease_end.as_millis()),
        State::Released | State::Done(_) => None,
    }
}

#[cfg(test)]
mod tests;
