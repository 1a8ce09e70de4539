//! The conformance suite: what every store must do.

use idem_conformance::{End, Harness, Place, Transactions, async_trait};
use idem_core::{Completion, Fenced, Response, StoreError};
use idem_postgres::{
    Builder, OpenError, PostgresStore,
    tokio_postgres::{self, Client, NoTls},
};

fn url() -> String {
    std::env::var("DEVURL").unwrap()
}

fn builder(place: &Place) -> Builder {
    PostgresStore::builder(&url()).table(place.name()).clock(place.clock())
}

async fn open(place: &Place) -> Result<PostgresStore, OpenError> {
    builder(place).connect().await
}

fn harness() -> Harness {
    Harness::new(async |place: Place| open(&place).await).durable().transactions(OwnConnection)
}

idem_conformance::suite!(harness());

/// Business rows in the store's database, written through a connection of their own.
struct OwnConnection;

impl OwnConnection {
    async fn connect(place: &Place) -> Client {
        let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.expect("the server can be reached");
        tokio::spawn(connection);
        let table = format!("CREATE TABLE IF NOT EXISTS {}_business (row TEXT NOT NULL)", place.name());
        client.batch_execute(&table).await.expect("the table can be made");
        client
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
        let store = open(place).await.expect("the store can be opened");
        let mut client = Self::connect(place).await;
        let transaction = client.transaction().await.expect("a transaction can be begun");
        let insert = format!("INSERT INTO {}_business (row) VALUES ($1)", place.name());
        transaction.execute(&insert, &[&row]).await.expect("the row can be written");
        let answer = store.complete_in(&transaction, completion).await?;
        match end {
            End::Commit if answer != Fenced::Superseded => transaction.commit().await.expect("it can be committed"),
            _ => transaction.rollback().await.expect("it can be rolled back"),
        }
        Ok(answer)
    }

    async fn rows(&self, place: &Place) -> Vec<String> {
        let client = Self::connect(place).await;
        let rows = client.query(&format!("SELECT row FROM {}_business", place.name()), &[]).await;
        rows.expect("the rows can be read").iter().map(|row| row.get(0)).collect()
    }
}
