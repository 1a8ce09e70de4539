//! The table: made once, by whoever comes first or by hand, and refused where it is not as it must be.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use idem_core::{
    Claim, Completion, Fenced, Fingerprint, Key, Owner, Response, Retention, Scope, Store, StoreError, StoreErrorKind,
    Token,
};
use idem_postgres::{
    OpenError, PostgresStore,
    tokio_postgres::{self, Client, NoTls},
};
use test_servers::postgres;

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn claim(number: u8) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "b").build().unwrap();
    Claim::new(Scope::global(), Key::new("k").unwrap(), Token::from_bytes([number; 16]), fingerprint)
}

/// The columns, constraints and indexes of a schema's tables, as the server describes them.
async fn described(client: &Client, schema: &str) -> Vec<String> {
    let text = "SELECT format('%s %s %s %s', table_name, column_name, data_type, is_nullable)
            FROM information_schema.columns WHERE table_schema = $1
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = $1
        UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint
            WHERE connamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
        UNION ALL SELECT format('%s %s', relname, reloptions) FROM pg_class
            WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
        ORDER BY 1";
    client.query(text, &[&schema]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_servers_that_start_at_once_make_one_table() {
    let url = postgres().create_database(&[]);
    for schema in ["public", "apart"] {
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(10));
        let servers = (0..10).map(|_| {
            let (store, barrier) = (PostgresStore::builder(&url).schema(schema), std::sync::Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                store.connect().await
            })
        });
        for server in servers.collect::<Vec<_>>() {
            server.await.unwrap().unwrap_or_else(|error| panic!("{schema}: {error}"));
        }
        let versions = format!("SELECT version FROM {schema}.idem_records_schema");
        assert_eq!(client(&url).await.query(&versions, &[]).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn the_sql_that_is_printed_makes_the_same_table() {
    let url = postgres().create_database(&[]);
    let client = client(&url).await;
    PostgresStore::builder(&url).schema("made").connect().await.unwrap();
    let by_hand = PostgresStore::builder(&url).schema("printed").without_migrating();
    for migration in by_hand.migrations().unwrap() {
        client.batch_execute(&format!("BEGIN; {} COMMIT", migration.sql())).await.unwrap();
    }
    by_hand.connect().await.unwrap();
    let printed = described(&client, "printed").await;
    let made: Vec<_> = described(&client, "made").await.iter().map(|line| line.replace("made", "printed")).collect();
    assert_eq!(printed, made);
    assert!(!printed.is_empty());
}

#[tokio::test]
async fn a_table_that_is_not_there_is_refused_with_what_to_run() {
    let url = postgres().create_database(&[]);
    for schema in ["public", "nowhere"] {
        let store = PostgresStore::builder(&url).schema(schema).without_migrating().build().unwrap();
        for error in [store.check().await.unwrap_err(), store.claim(&claim(1)).await.unwrap_err()] {
            assert_eq!(error.kind(), StoreErrorKind::Configuration);
            assert!(error.to_string().contains("PostgresStore::migrate"), "{error}");
        }
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        store.claim(&claim(1)).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_is_only_built_makes_its_table_before_its_first_operation() {
    let url = postgres().create_database(&[]);
    let store = PostgresStore::builder(&url).build().unwrap();
    let answer = idem_core::claim(&store, &claim(1)).await.unwrap();
    assert!(matches!(answer, idem_core::Answer::Claimed(_)), "{answer:?}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_as_it_is() {
    let url = postgres().create_database(&[]);
    PostgresStore::connect(&url).await.unwrap();
    let client = client(&url).await;
    client.batch_execute("INSERT INTO idem_records_schema (version) VALUES (7)").await.unwrap();
    let Err(OpenError::Store(error)) = PostgresStore::connect(&url).await else { panic!("it was opened") };
    assert_eq!(error.kind(), StoreErrorKind::Configuration);
    assert!(error.to_string().contains("has version 7") && error.to_string().contains("update idem"), "{error}");
    let versions = client.query("SELECT FROM idem_records_schema", &[]).await.unwrap().len();
    assert_eq!(versions, 2);
}

async fn complete_in(store: &PostgresStore, url: &str, owner: &Owner) -> Result<Fenced<Response>, StoreError> {
    let mut client = client(url).await;
    let transaction = client.transaction().await.unwrap();
    let completion = Completion::new(owner.clone(), Response::new(200), Retention::default());
    let answer = store.complete_in(&transaction, &completion).await;
    transaction.commit().await.unwrap();
    answer
}

#[tokio::test]
async fn a_record_of_a_newer_format_is_refused_and_never_guessed_or_overwritten() {
    let url = postgres().create_database(&[]);
    let store = PostgresStore::connect(&url).await.unwrap();
    let idem_core::Answer::Claimed(grant) = idem_core::claim(&store, &claim(1)).await.unwrap() else { panic!() };
    let client = client(&url).await;
    client.batch_execute("UPDATE idem_records SET format = 2").await.unwrap();
    let before = client.query_one("SELECT r::text FROM idem_records r", &[]).await.unwrap().get::<_, String>(0);
    let owner = grant.owner();
    let errors = [
        store.claim(&claim(1)).await.unwrap_err(),
        store.claim(&claim(2)).await.unwrap_err(),
        store.read(owner.scope(), owner.key()).await.unwrap_err(),
        store.complete(owner, &idem_core::Response::new(200), idem_core::Retention::default()).await.unwrap_err(),
        store.release(owner).await.unwrap_err(),
        store.forget(owner).await.unwrap_err(),
        store.hold(owner, idem_core::Retention::default()).await.unwrap_err(),
        store.checkpoint(owner, &idem_core::Checkpoint::new("charge", "ch_1").unwrap()).await.unwrap_err(),
        store.renew(owner, std::time::Duration::from_secs(9)).await.unwrap_err(),
        complete_in(&store, &url, owner).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
    }
    let after = client.query_one("SELECT r::text FROM idem_records r", &[]).await.unwrap().get::<_, String>(0);
    assert_eq!(after, before);
}

#[tokio::test]
async fn two_tables_are_two_stores() {
    let url = postgres().create_database(&[]);
    for (schema, table) in [("public", "one"), ("public", "Two"), ("other", "one")] {
        let store = PostgresStore::builder(&url).schema(schema).table(table).connect().await.unwrap();
        let answer = idem_core::claim(&store, &claim(1)).await.unwrap();
        assert!(matches!(answer, idem_core::Answer::Claimed(_)), "{schema}.{table}: {answer:?}");
    }
}

#[test]
fn a_name_that_could_be_something_else_in_a_statement_is_refused() {
    let long = "t".repeat(49);
    for name in ["", "1st", "a b", "a\"b", "a;b", "a.b", "täble", &long] {
        let built = PostgresStore::builder("postgres://u@h/d").table(name).build();
        assert!(matches!(built, Err(OpenError::Name { setting: "table", .. })), "{name:?}");
        let built = PostgresStore::builder("postgres://u@h/d").schema(name).build();
        assert!(matches!(built, Err(OpenError::Name { setting: "schema", .. })), "{name:?}");
    }
}

#[tokio::test]
async fn a_user_that_may_not_make_the_table_is_told_what_it_needs() {
    let url = postgres().create_database(&[]);
    let admin = client(&url).await;
    let user = format!("maker_{}", std::process::id());
    let database = "DO $$ BEGIN EXECUTE format('REVOKE CREATE ON DATABASE %I FROM PUBLIC', current_database()); END $$";
    admin
        .batch_execute(&format!(
            "CREATE ROLE {user} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC; {database}; CREATE SCHEMA own AUTHORIZATION {user}"
        ))
        .await
        .unwrap();
    let (_, rest) = url.split_once('@').unwrap();
    let as_user = format!("postgres://{user}@{rest}");
    for schema in ["public", "elsewhere"] {
        let Err(OpenError::Store(error)) = PostgresStore::builder(&as_user).schema(schema).connect().await else {
            panic!("{schema}: it was opened");
        };
        assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("CREATE on the schema"), "{error}");
    }
    // A schema of its own needs no right to make schemas.
    PostgresStore::builder(&as_user).schema("own").connect().await.unwrap();
    admin.batch_execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await.unwrap();
}

#[tokio::test]
async fn a_claim_in_a_transaction_makes_the_table_too_where_it_is_the_first_operation() {
    let url = postgres().create_database(&[]);
    let store = PostgresStore::builder(&url).build().unwrap();
    let mut client = client(&url).await;
    let transaction = client.transaction().await.unwrap();
    let answer = store.claim_in(&transaction, &claim(1)).await.unwrap();
    assert!(matches!(answer, idem_core::Answer::Claimed(_)), "{answer:?}");
}

#[tokio::test]
async fn another_version_of_the_schema_is_refused_where_somebody_else_migrates() {
    let url = postgres().create_database(&[]);
    PostgresStore::connect(&url).await.unwrap();
    let client = client(&url).await;
    for (set, parts) in [
        ("UPDATE idem_records_schema SET version = 7", ["has version 7", "update idem"]),
        ("UPDATE idem_records_schema SET version = 0", ["has version 0", "run PostgresStore::migrate"]),
    ] {
        client.batch_execute(set).await.unwrap();
        let store = PostgresStore::builder(&url).without_migrating().build().unwrap();
        let error = store.check().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
    }
}
