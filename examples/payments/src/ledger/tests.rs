use super::*;

fn tenant(number: u8) -> Tenant {
    Tenant::of_api_key(format!("tenant-{number}").as_bytes()).unwrap()
}

fn new(number: u8, downstream_key: &str) -> NewPayment {
    NewPayment {
        tenant: tenant(number),
        downstream_key: downstream_key.into(),
        charge_id: format!("ch_{downstream_key}"),
        amount_minor: 250_000,
        currency: "VND".into(),
    }
}

/// Every ledger, and what keeps the file.
async fn ledgers() -> (tempfile::TempDir, [Ledger; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteLedger::open(&folder.path().join("ledger.db")).unwrap();
    let postgres = PostgresLedger::open(&database()).await.unwrap();
    (folder, [Ledger::Memory(Arc::default()), Ledger::Sqlite(sqlite), Ledger::Postgres(postgres)])
}

/// A PostgreSQL database that nobody else uses.
fn database() -> tokio_postgres::Config {
    test_servers::postgres().create_database(&[]).parse().unwrap()
}

#[tokio::test]
async fn payments_are_numbered_from_1_and_listed_by_tenant() {
    let (_folder, ledgers) = ledgers().await;
    for ledger in ledgers {
        let ids = [new(7, "a"), new(8, "b"), new(7, "c")].map(async |payment| ledger.insert(payment).await.unwrap().id);
        for (expected, id) in ["1", "2", "3"].iter().zip(ids) {
            assert_eq!(id.await, *expected);
        }
        let of_tenant = ledger.payments(&tenant(7)).await.unwrap();
        assert_eq!(of_tenant, [Payment::succeeded(1, "ch_a", 250_000), Payment::succeeded(3, "ch_c", 250_000)]);
        assert_eq!(ledger.count().await.unwrap(), 3);
    }
}

#[tokio::test]
async fn a_payment_written_again_under_its_downstream_key_is_the_one_that_was_first() {
    let (_folder, ledgers) = ledgers().await;
    for ledger in ledgers {
        let first = ledger.insert(new(7, "a")).await.unwrap();
        let again = ledger.insert(NewPayment { charge_id: "ch_other".into(), ..new(7, "a") }).await.unwrap();
        assert_eq!((again, ledger.count().await.unwrap()), (first, 1));
    }
}

#[tokio::test]
async fn a_payment_is_found_under_its_downstream_key_with_what_was_ordered() {
    let (_folder, ledgers) = ledgers().await;
    for ledger in ledgers {
        let written = ledger.insert(new(7, "a")).await.unwrap();
        let order = Order { amount_minor: 250_000, currency: "VND".into() };
        assert_eq!(ledger.find("a").await.unwrap(), Some((order, written)));
        assert_eq!(ledger.find("b").await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_cart_is_reserved_once_per_tenant_and_stays_its_payments_own() {
    let (_folder, ledgers) = ledgers().await;
    for ledger in ledgers {
        for (number, key, expected) in [
            (7, "a", Reservation::Own),
            (7, "b", Reservation::Taken),
            (7, "a", Reservation::Own),
            (8, "c", Reservation::Own),
        ] {
            assert_eq!(ledger.reserve(&tenant(number), "cart-1", key).await.unwrap(), expected, "{number} {key}");
        }
    }
}

#[tokio::test]
async fn rows_are_there_after_the_database_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let written = Ledger::Sqlite(SqliteLedger::open(&path).unwrap()).insert(new(7, "a")).await.unwrap();
    let again = Ledger::Sqlite(SqliteLedger::open(&path).unwrap());
    assert_eq!(again.payments(&tenant(7)).await.unwrap(), [written]);

    let database = database();
    let written = Ledger::Postgres(PostgresLedger::open(&database).await.unwrap()).insert(new(7, "a")).await.unwrap();
    let again = Ledger::Postgres(PostgresLedger::open(&database).await.unwrap());
    assert_eq!(again.payments(&tenant(7)).await.unwrap(), [written]);
}

#[tokio::test]
async fn the_tables_of_a_postgres_database_are_in_use_once_there_is_a_row_in_one() {
    let database = database();
    assert_eq!(postgres::table_in_use(&database).await.unwrap(), None, "there are no tables");
    let ledger = Ledger::Postgres(PostgresLedger::open(&database).await.unwrap());
    assert_eq!(postgres::table_in_use(&database).await.unwrap(), None, "they are empty");
    ledger.reserve(&tenant(7), "cart-1", "a").await.unwrap();
    assert_eq!(postgres::table_in_use(&database).await.unwrap(), Some("carts"));
    ledger.insert(new(7, "a")).await.unwrap();
    assert_eq!(postgres::table_in_use(&database).await.unwrap(), Some("payments"));
}

#[test]
fn a_path_that_can_not_be_opened_is_named() {
    let error = SqliteLedger::open(std::path::Path::new("missing/ledger.db")).err().unwrap();
    assert!(error.to_string().contains("missing/ledger.db"), "{error}");
}
