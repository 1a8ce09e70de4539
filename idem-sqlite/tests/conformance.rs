//! The conformance suite: what every store must do.

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
    Harness::new(async |place: Place| open(&place)).durable().transactions(OwnConnection)
}

idem_conformance::suite!(harness());

/// Business rows in the store's file, written through a connection of their own.
struct OwnConnection;

impl OwnConnection {
    fn connect(place: &Place) -> Connection {
        let connection = Connection::open(place.dir().join("idem.db")).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
        connection.execute_batch("CREATE TABLE IF NOT EXISTS business (row TEXT NOT NULL)").unwrap();
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
        let store = open(place).unwrap();
        let mut connection = Self::connect(place);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        transaction.execute("INSERT INTO business (row) VALUES (?1)", [row]).unwrap();
        let answer = store.complete_in(&transaction, completion)?;
        if end == End::Commit && answer != Fenced::Superseded {
            transaction.commit().unwrap();
        } // else it is rolled back when it is dropped
        Ok(answer)
    }

    async fn rows(&self, place: &Place) -> Vec<String> {
        let connection = Self::connect(place);
        let mut rows = connection.prepare("SELECT row FROM business").unwrap();
        rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}
