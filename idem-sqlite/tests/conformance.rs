//! The conformance suite: what every store must do.

use std::time::Duration;

use idem_conformance::{End, Harness, Place, Transactions, async_trait};
use idem_core::{Completion, Fenced, Response, StoreError};
use idem_sqlite::{
    OpenError, SqliteStore,
    rusqlite::{Connection, TransactionBehavior},
};

fn open(place: &Place) -> Result<SqliteStore, OpenError> {
    SqliteStore::builder(place.dir().join("idem.db")).clock(place.clock()).open()
}

fn harness() -> Harness {
    let harness = Harness::new(async |place: Place| open(&place));
    harness.durable().shared_between_processes::<&str, &str>([]).transactions(OwnConnection)
}

idem_conformance::suite!(harness());

/// Business rows in the store's file, written through a connection of their own.
struct OwnConnection;

impl OwnConnection {
    fn connect(place: &Place) -> Connection {
        let connection = Connection::open(place.dir().join("idem.db")).expect("the file can be opened");
        connection.busy_timeout(Duration::from_secs(10)).expect("a time limit can be set");
        let table = "CREATE TABLE IF NOT EXISTS business (row TEXT NOT NULL)";
        connection.execute_batch(table).expect("the table can be made");
        connection
    }
}

#[async_trait]
impl Transactions for OwnConnection {
    async fn complete_in(
        &self,
        place: &Place,
        completion: &Completion,
        row: &str,
        end: End,
    ) -> Result<Fenced<Response>, StoreError> {
        let store = open(place).expect("the store can be opened");
        let mut connection = Self::connect(place);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.expect("the write lock can be had");
        transaction.execute("INSERT INTO business (row) VALUES (?1)", [row]).expect("the row can be written");
        let answer = store.complete_in(&transaction, completion)?;
        if end == End::Commit && answer != Fenced::Superseded {
            transaction.commit().expect("the transaction can be committed");
        } // else it is rolled back when it is dropped
        Ok(answer)
    }

    async fn rows(&self, place: &Place) -> Vec<String> {
        let connection = Self::connect(place);
        let mut rows = connection.prepare("SELECT row FROM business").expect("the table is there");
        let rows = rows.query_map([], |row| row.get(0)).expect("the rows can be read");
        rows.map(|row| row.expect("a row is text")).collect()
    }
}
