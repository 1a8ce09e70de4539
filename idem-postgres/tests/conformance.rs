//! The conformance suite: what every store must do, at every isolation level that a database may have by default, and
//! through a pooler that gives each transaction another session.

use std::{env, sync::OnceLock};

use idem_conformance::{End, Harness, Place, Transactions, async_trait};
use idem_core::{Completion, Fenced, Response, Store, StoreError, StoreErrorKind};
use idem_postgres::{
    OpenError, PostgresStore,
    tokio_postgres::{self, Client, NoTls},
};
use test_servers::{PgBouncer, postgres};

mod read_committed {
    use super::*;

    idem_conformance::suite!(harness(|| postgres().url()));
}

mod repeatable_read {
    use super::*;

    fn url() -> String {
        static DATABASE: OnceLock<String> = OnceLock::new();
        let make = || postgres().create_database(&[("default_transaction_isolation", "repeatable read")]);
        DATABASE.get_or_init(make).clone()
    }

    idem_conformance::suite!(harness(url));
}

mod serializable {
    use super::*;

    fn url() -> String {
        static DATABASE: OnceLock<String> = OnceLock::new();
        let make = || postgres().create_database(&[("default_transaction_isolation", "serializable")]);
        DATABASE.get_or_init(make).clone()
    }

    idem_conformance::suite!(harness(url));
}

mod through_a_pooler {
    use super::*;

    /// Business transactions go there directly.
    fn database() -> &'static str {
        static DATABASE: OnceLock<String> = OnceLock::new();
        DATABASE.get_or_init(|| postgres().create_database(&[]))
    }

    // case 071
    fn url() -> String {
        static POOLER: OnceLock<PgBouncer> = OnceLock::new();
        let pooler = POOLER.get_or_init(|| PgBouncer::start(database(), Default::default()));
        format!("{}?pgbouncer=true", pooler.url_through(database()))
    }

    idem_conformance::suite!(harness(url));
}

mod by_the_servers_own_clock {
    use super::*;

    // The server's host is this one, or one whose clock agrees with it.
    idem_conformance::suite!(harness_of(OwnConnection { url: || postgres().url(), clock: Clock::Servers }).real_time());
}

fn harness(url: fn() -> String) -> Harness {
    harness_of(OwnConnection { url, clock: Clock::Places })
}

fn harness_of(server: OwnConnection) -> Harness {
    let harness = Harness::new(async move |place: Place| server.open(&place).await);
    harness.durable().shared_between_processes([(URL, server.url())]).transactions(server)
}

/// Tells another process, which the suite starts, where the database of this one is.
const URL: &str = "IDEM_POSTGRES_CONFORMANCE_URL";

/// Where a place is, and business rows beside its records, written through a connection of their own.
#[derive(Clone, Copy)]
struct OwnConnection {
    url: fn() -> String,
    clock: Clock,
}

#[derive(Clone, Copy)]
enum Clock {
    /// Moved by the checks.
    Places,
    Servers,
}

impl OwnConnection {
    fn url(&self) -> String {
        env::var(URL).unwrap_or_else(|_| (self.url)())
    }

    async fn open(&self, place: &Place) -> Result<PostgresStore, OpenError> {
        let builder = PostgresStore::builder(&self.url()).table(place.name());
        let store = match self.clock {
            Clock::Places => builder.clock(place.clock()).build()?,
            Clock::Servers => builder.build()?,
        };
        // Not the whole check for each of so many handles.
        store.migrate().await?;
        Ok(store)
    }

    async fn connect(&self, place: &Place) -> Client {
        let url = self.url();
        let url = url.strip_suffix("?pgbouncer=true").unwrap_or(&url);
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server can be reached");
        tokio::spawn(connection);
        let table = format!("CREATE TABLE IF NOT EXISTS {}_business (row TEXT NOT NULL)", place.name());
        client.batch_execute(&table).await.expect("the table can be made");
        client
    }

    /// One try. Above READ COMMITTED it may find that others came in between.
    async fn transaction(
        &self,
        (client, store, place): (&mut Client, &PostgresStore, &Place),
        completion: &Completion,
        row: &str,
        end: End,
    ) -> Result<Fenced<Response>, StoreError> {
        let transaction = client.transaction().await.expect("a transaction can be begun");
        if store.lock_in(&transaction, completion.owner()).await? == Fenced::Superseded {
            // Also where the attempt's own completion is there already, which `complete_in` tells.
            let answer = store.complete_in(&transaction, completion).await?;
            transaction.rollback().await.expect("it can be rolled back");
            return Ok(answer);
        }
        let insert = format!("INSERT INTO {}_business (row) VALUES ('{row}')", place.name());
        transaction.batch_execute(&insert).await.expect("the row can be written");
        let answer = store.complete_in(&transaction, completion).await?;
        match end {
            End::Commit if answer != Fenced::Superseded => transaction.commit().await.expect("it can be committed"),
            _ => transaction.rollback().await.expect("it can be rolled back"),
        }
        Ok(answer)
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
        let store = self.open(place).await.expect("the store can be opened");
        let mut client = self.connect(place).await;
        loop {
            match self.transaction((&mut client, &store, place), completion, row, end).await {
                Err(error) if error.kind() == StoreErrorKind::Unavailable => {} // done again, as the docs say
                answer => return answer,
            }
        }
    }

    async fn rows(&self, place: &Place) -> Vec<String> {
        let client = self.connect(place).await;
        let rows = client.query_typed(&format!("SELECT row FROM {}_business", place.name()), &[]).await;
        rows.expect("the rows can be read").iter().map(|row| row.get(0)).collect()
    }
}

/// What the suite leaves out for each of its handles.
#[tokio::test]
async fn the_check_finds_nothing_wrong_where_the_suite_runs() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let url = postgres().create_database(&[("default_transaction_isolation", level)]);
        let store = PostgresStore::connect(&url).await.unwrap_or_else(|error| panic!("{level}: {error}"));
        store.check().await.unwrap_or_else(|error| panic!("{level}: {error}"));
    }
}
