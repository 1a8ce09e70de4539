//! Setting a store up: what is refused at once, what the start-up check finds, and TLS.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{num::NonZeroUsize, time::Duration};

use idem_core::{Key, Scope, Store, StoreErrorKind};
use idem_postgres::{
    OpenError, PostgresStore,
    tokio_postgres::{self, Client, NoTls},
};
use test_servers::{PgBouncer, PgBouncerSettings, PrivatePostgres, Settings, postgres};

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Connects, and expects the check to refuse it.
async fn refused(url: &str) -> String {
    match PostgresStore::connect(url).await {
        Err(OpenError::Store(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
            error.to_string()
        }
        Err(error) => panic!("it was refused for another reason: {error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// The URL for another user of the same database.
fn as_user(url: &str, user: &str) -> String {
    let (_, rest) = url.split_once('@').unwrap();
    format!("postgres://{user}@{rest}")
}

#[tokio::test]
async fn a_url_that_can_not_be_read_is_refused_without_being_shown() {
    for (url, part) in [
        ("hunter2", "does not begin with postgres://"),
        ("mysql://u:hunter2@h/d", "does not begin with postgres://"),
        ("postgres://u:hunter2@h/d?sslmode=maybe", "sslmode is none of"),
        ("postgres://u:hunter2@h/d?pgbouncer=hunter2", "pgbouncer is neither true nor false"),
        ("postgres://u:hunter2@h/d?sslrootcert=%zz", "sslrootcert has an escape"),
        ("postgres://u:hunter2@h:port/d", "invalid"),
        ("postgres://u:hunter2@h/d?no_such_setting=hunter2", "no_such_setting"),
    ] {
        let error = PostgresStore::builder(url).build().map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Url { .. }), "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let builder = PostgresStore::builder("postgres://u:hunter2@h/d");
    assert!(!format!("{builder:?} {:?}", builder.clone().build().unwrap()).contains("hunter2"));
}

#[tokio::test]
async fn settings_that_can_not_be_are_refused_when_it_is_built() {
    let built = PostgresStore::builder("postgres://u@h/d").timeout(Duration::ZERO).build();
    assert!(matches!(built, Err(OpenError::NoTime)));
    let built = PostgresStore::builder("postgres://u@h/d?sslmode=verify-full&sslrootcert=/no/such/file").build();
    let Err(error @ OpenError::Tls { .. }) = built else { panic!("it was built") };
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    let built = PostgresStore::builder("postgres://u@h/d?sslmode=verify-full&sslrootcert=/dev/null").build();
    let Err(error @ OpenError::Tls { .. }) = built else { panic!("it was built") };
    assert!(error.to_string().contains("there are none in it"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_a_user_that_it_does_not_know_is_not() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let connected = PostgresStore::connect(&format!("postgres://u@127.0.0.1:{port}/d")).await;
    let Err(OpenError::Store(error)) = connected else { panic!("it was connected") };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    if postgres().is_private() {
        let shown = refused(&as_user(&postgres().url(), "nobody_of_that_name")).await;
        assert!(shown.contains("refuses the user, password or database"), "{shown}");
    }
}

#[tokio::test]
async fn a_replica_is_refused_with_where_to_go() {
    let primary = PrivatePostgres::start(Settings::new());
    PostgresStore::connect(&primary.url()).await.unwrap();
    let replica = primary.standby();
    let shown = refused(&replica.url()).await;
    assert!(shown.contains("is a replica") && shown.contains("target_session_attrs=read-write"), "{shown}");
    // And found by itself where both are named.
    let (replica, primary) = (replica.port(), primary.port());
    let both = format!("postgres://postgres@127.0.0.1:{replica},127.0.0.1:{primary}/postgres");
    PostgresStore::connect(&format!("{both}?target_session_attrs=read-write")).await.unwrap();
}

#[tokio::test]
async fn a_session_that_could_not_keep_the_promise_is_refused_with_what_to_set() {
    for (option, value, part) in [
        ("default_transaction_read_only", "on", "transactions are read-only"),
        ("synchronous_commit", "off", "synchronous_commit is off"),
    ] {
        let url = postgres().create_database(&[]);
        PostgresStore::connect(&url).await.unwrap();
        let set = format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {option} = {value}', current_database()); END $$"
        );
        client(&url).await.batch_execute(&set).await.unwrap();
        let shown = refused(&url).await;
        assert!(shown.contains(part), "{shown}");
    }
}

#[tokio::test]
async fn rights_that_are_missing_are_named() {
    let url = postgres().create_database(&[]);
    PostgresStore::connect(&url).await.unwrap();
    let admin = client(&url).await;
    let user = format!("reader_{}", std::process::id());
    admin.batch_execute(&format!("CREATE ROLE {user} LOGIN")).await.unwrap();
    admin.batch_execute(&format!("GRANT SELECT, INSERT ON idem_records TO {user}")).await.unwrap();
    admin.batch_execute(&format!("GRANT SELECT ON idem_records_schema TO {user}")).await.unwrap();
    let shown = refused(&as_user(&url, &user)).await;
    assert!(shown.contains("GRANT UPDATE, DELETE ON"), "{shown}");
    admin.batch_execute(&format!("GRANT UPDATE, DELETE ON idem_records TO {user}")).await.unwrap();
    PostgresStore::connect(&as_user(&url, &user)).await.unwrap();

    // One that may not even make the table where there is none.
    let empty = postgres().create_database(&[]);
    let shown = refused(&as_user(&empty, &user)).await;
    assert!(shown.contains("lacks the rights to make"), "{shown}");
    admin.batch_execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await.unwrap();
}

#[tokio::test]
async fn a_table_that_would_lose_or_hide_rows_is_refused() {
    let url = postgres().create_database(&[]);
    PostgresStore::connect(&url).await.unwrap();
    let admin = client(&url).await;
    admin.batch_execute("ALTER TABLE idem_records SET UNLOGGED").await.unwrap();
    let shown = refused(&url).await;
    assert!(shown.contains("SET LOGGED"), "{shown}");
    admin.batch_execute("ALTER TABLE idem_records SET LOGGED").await.unwrap();

    let user = format!("tenant_{}", std::process::id());
    admin
        .batch_execute(&format!(
            "CREATE ROLE {user} LOGIN; GRANT ALL ON idem_records, idem_records_schema TO {user};
            ALTER TABLE idem_records ENABLE ROW LEVEL SECURITY"
        ))
        .await
        .unwrap();
    let shown = refused(&as_user(&url, &user)).await;
    assert!(shown.contains("row security hides rows"), "{shown}");
    admin.batch_execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await.unwrap();
}

// case 071
#[tokio::test]
async fn a_pooler_that_can_not_work_is_refused_with_the_setting_that_makes_it() {
    let url = postgres().create_database(&[]);
    let pooler = PgBouncer::start(&url, PgBouncerSettings::new());
    let shown = refused(&pooler.url_through(&url)).await;
    assert!(shown.contains("Builder::through_pooler") && shown.contains("pgbouncer=true"), "{shown}");
    PostgresStore::builder(&pooler.url_through(&url)).through_pooler().connect().await.unwrap();
    PostgresStore::connect(&format!("{}?pgbouncer=true", pooler.url_through(&url))).await.unwrap();
}

#[tokio::test]
async fn a_check_says_what_has_changed_since_the_store_was_opened() {
    let url = postgres().create_database(&[]);
    let store = PostgresStore::connect(&url).await.unwrap();
    store.check().await.unwrap();
    let admin = client(&url).await;
    admin.batch_execute("ALTER TABLE idem_records RENAME TO somewhere_else").await.unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
    admin
        .batch_execute(
            "ALTER TABLE somewhere_else RENAME TO idem_records; ALTER TABLE idem_records DROP COLUMN response",
        )
        .await
        .unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("not as this store made it"), "{error}");
}

#[tokio::test]
async fn a_check_changes_no_record() {
    let store = PostgresStore::builder(&postgres().url()).table("unchanged").connect().await.unwrap();
    store.check().await.unwrap();
    assert_eq!(store.sweep(NonZeroUsize::MAX).await.unwrap(), 0);
    let rows = client(&postgres().url()).await.query("SELECT FROM unchanged", &[]).await.unwrap();
    assert!(rows.is_empty());
}

#[tokio::test]
async fn tls_takes_the_servers_word_as_far_as_sslmode_says() {
    let right = PrivatePostgres::start(Settings::new().tls("localhost"));
    let wrong = PrivatePostgres::start(Settings::new().tls("elsewhere.example"));
    let stranger = right.ca_file();
    let encrypted = async |url: &str| {
        let store = PostgresStore::connect(url).await?;
        drop(store);
        Ok::<_, OpenError>(())
    };
    let root = |server: &PrivatePostgres| server.ca_file().display().to_string();
    for (url, expected) in [
        (format!("{}?sslmode=require", right.url()), true),
        (format!("{}?sslmode=require", wrong.url()), true),
        (format!("{}?sslmode=verify-full&sslrootcert={}", right.localhost_url(), root(&right)), true),
        // The certificate is for a name, and this is an address.
        (format!("{}?sslmode=verify-full&sslrootcert={}", right.url(), root(&right)), false),
        (format!("{}?sslmode=verify-full&sslrootcert={}", wrong.localhost_url(), root(&wrong)), false),
        (format!("{}?sslmode=verify-ca&sslrootcert={}", wrong.localhost_url(), root(&wrong)), true),
        (format!("{}?sslmode=verify-ca&sslrootcert={}", wrong.localhost_url(), stranger.display()), false),
        (format!("{}?sslmode=require&sslrootcert={}", wrong.localhost_url(), stranger.display()), false),
        // No authority that the system knows vouches for it.
        (format!("{}?sslmode=verify-ca", right.localhost_url()), false),
        (format!("{}?sslmode=verify-full", right.localhost_url()), false),
    ] {
        let connected = encrypted(&url).await;
        assert_eq!(connected.is_ok(), expected, "{url}: {connected:?}");
    }
    let sessions = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
        WHERE a.application_name = 'idem' AND NOT s.ssl";
    for (mode, expected) in [("disable", false), ("prefer", true), ("require", true)] {
        let url = format!("{}?sslmode={mode}&application_name={mode}", right.url());
        let store = PostgresStore::connect(&url).await.unwrap();
        store.read(&Scope::global(), &Key::new("k").unwrap()).await.unwrap();
        let is_encrypted = format!(
            "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
            WHERE a.application_name = '{mode}'"
        );
        let is_encrypted: bool = client(&right.url()).await.query_one(&is_encrypted, &[]).await.unwrap().get(0);
        assert_eq!(is_encrypted, expected, "{mode}");
    }
    let store = PostgresStore::connect(&format!("{}?sslmode=require", right.url())).await.unwrap();
    let plain = client(&right.url()).await.query_one(sessions, &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(plain, 0);
    drop(store);
    // A server that speaks no TLS.
    let url = format!("{}?sslmode=require", postgres().url());
    if postgres().is_private() {
        assert!(PostgresStore::connect(&url).await.is_err());
    }
}

#[tokio::test]
async fn a_function_that_the_user_may_not_run_is_refused() {
    let url = postgres().create_database(&[]);
    PostgresStore::connect(&url).await.unwrap();
    let admin = client(&url).await;
    let user = format!("caller_{}", std::process::id());
    admin
        .batch_execute(&format!(
            "CREATE ROLE {user} LOGIN; GRANT ALL ON idem_records, idem_records_schema TO {user};
            REVOKE EXECUTE ON FUNCTION idem_records_claim FROM PUBLIC"
        ))
        .await
        .unwrap();
    let shown = refused(&as_user(&url, &user)).await;
    assert!(shown.contains("EXECUTE on the function"), "{shown}");
    admin.batch_execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await.unwrap();
}

#[tokio::test]
async fn a_server_that_has_no_connection_left_is_unavailable() {
    let url = postgres().create_database(&[]);
    let user = format!("crowd_{}", std::process::id());
    let admin = client(&url).await;
    admin.batch_execute(&format!("CREATE ROLE {user} LOGIN CONNECTION LIMIT 0")).await.unwrap();
    let connected = PostgresStore::connect(&as_user(&url, &user)).await;
    admin.batch_execute(&format!("DROP ROLE {user}")).await.unwrap();
    let Err(OpenError::Store(error)) = connected else { panic!("it was connected") };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_database_that_is_not_in_utf8_is_refused() {
    let server = PrivatePostgres::start(Settings::new());
    let make = "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    client(&server.url()).await.batch_execute(make).await.unwrap();
    let (base, _) = server.url().rsplit_once('/').map(|(base, name)| (base.to_owned(), name.to_owned())).unwrap();
    let shown = refused(&format!("{base}/latin")).await;
    assert!(shown.contains("encoding is LATIN1"), "{shown}");
}
