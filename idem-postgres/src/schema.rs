//! The table: its name, its definition, and the versions of that.

use idem_core::{StoreError, StoreErrorKind};
use sha2::{Digest, Sha256};
use tokio_postgres::{Client, error::SqlState};

use crate::{
    OpenError,
    error::{described, postgres_error, store_error},
};

/// The version of the schema that this code works with.
pub(crate) const VERSION: i32 = 1;

/// The longest name of a table or schema. What is derived from it still fits into PostgreSQL's 63 bytes.
const MAX_NAME: usize = 48;

/// The share of a page that inserts fill, in percent. The rest is for completions, which are larger than the claims
/// that they replace: an update that finds room on its page touches no index.
const FILLFACTOR: u32 = 30;

/// Where the records are, and what is named after that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    schema: String,
    table: String,
}

impl Names {
    /// # Errors
    ///
    /// [`OpenError::Name`] if either is not 1 to 48 of `A-Z`, `a-z`, `0-9` and `_`, beginning with no digit.
    pub(crate) fn new(schema: &str, table: &str) -> Result<Self, OpenError> {
        for (setting, name) in [("schema", schema), ("table", table)] {
            let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if name.is_empty() || name.len() > MAX_NAME || !is_word || name.as_bytes()[0].is_ascii_digit() {
                return Err(OpenError::Name { setting, name: name.chars().take(MAX_NAME).collect() });
            }
        }
        Ok(Self { schema: schema.into(), table: table.into() })
    }

    /// The table of records, as it is written in a statement.
    pub(crate) fn records(&self) -> String {
        format!(r#""{}"."{}""#, self.schema, self.table)
    }

    /// The function that inserts a first claim, as it is written in a statement.
    pub(crate) fn claim_function(&self) -> String {
        format!(r#""{}"."{}_claim""#, self.schema, self.table)
    }

    /// The table that has the schema's version.
    fn versions(&self) -> String {
        format!(r#""{}"."{}_schema""#, self.schema, self.table)
    }

    /// The channel on which waits are woken.
    pub(crate) fn channel(&self) -> String {
        format!("idem_{:016x}", self.seed("notify"))
    }

    /// A number for advisory locks, which all users of a database share: another one for each table and purpose.
    pub(crate) fn seed(&self, purpose: &str) -> i64 {
        let digest: [u8; 32] = Sha256::digest(format!("idem {purpose} {}", self.records())).into();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        i64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// One step of the schema: the SQL that makes `version` out of the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    version: i32,
    sql: String,
}

impl Migration {
    /// The version that the schema has afterwards, from 1.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Statements to run in one transaction, after those of the versions before. They record the version too.
    pub fn sql(&self) -> &str {
        &self.sql
    }
}

/// All steps, the oldest first.
pub(crate) fn migrations(names: &Names) -> Vec<Migration> {
    let version = 1;
    let (schema, table, records, versions) = (&names.schema, &names.table, names.records(), names.versions());
    // Even for one that is there, `IF NOT EXISTS` asks for the right to make it.
    let make_schema = format!(
        "DO $idem$ BEGIN
    IF to_regnamespace('\"{schema}\"') IS NULL THEN CREATE SCHEMA \"{schema}\"; END IF;
END $idem$;\n"
    );
    // No index on anything that a completion changes: `sweep_at` is set once and moved by the sweep alone.
    let sql = format!(
        r#"{make_schema}CREATE TABLE {versions} (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {records} (
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    format smallint NOT NULL,           -- 1; a newer one is refused
    state smallint NOT NULL,            -- 0 in progress, 1 released, 2 held, 3 done
    token bytea NOT NULL,
    number bigint NOT NULL,
    origin smallint NOT NULL,           -- 0 first, 1 after a release, 2 takeover, 3 resolved
    repeat boolean NOT NULL,
    lapses bigint NOT NULL,
    fingerprint bytea,
    lease_end bigint NOT NULL,          -- instants are milliseconds since 1970
    claimed bigint NOT NULL,
    settled bigint,
    expiry bigint NOT NULL,
    on_lapse smallint NOT NULL,         -- 0 take over, 1 hold
    started boolean NOT NULL,
    checkpoint_names text[] COLLATE "C" NOT NULL DEFAULT '{{}}',
    checkpoint_values bytea[] NOT NULL DEFAULT '{{}}',
    response bytea,
    sweep_at bigint NOT NULL,           -- when to look whether it has expired
    waited boolean NOT NULL DEFAULT false, -- whether someone listens for the end of the attempt
    PRIMARY KEY (scope, key),
    CHECK ((state = 3) = (response IS NOT NULL))
) WITH (fillfactor = {FILLFACTOR});
CREATE INDEX "{table}_sweep" ON {records} (sweep_at);
CREATE FUNCTION {claim_function}(
    text, text, bytea, bytea, smallint, -- scope, key, token, fingerprint, on-lapse rule
    bigint, bigint, bigint, text        -- lease, retention, the clock if a test has set it, the longest wait for a lock
) RETURNS bigint LANGUAGE plpgsql AS $idem$
DECLARE
    bound text;
    at bigint;
    lease_ends bigint;
    expires bigint;
BEGIN
    bound := set_config('lock_timeout', $9, true);
    IF NOT pg_try_advisory_xact_lock_shared(hashtextextended($2, hashtextextended($1, {seed}))) THEN
        RETURN NULL;
    END IF;
    at := coalesce($8, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint);
    lease_ends := at + least($6, 9223372036854775807 - at);
    expires := greatest(lease_ends, at + least($7, 9223372036854775807 - at));
    INSERT INTO {records} (scope, key, format, state, token, number, origin, repeat, lapses, fingerprint, lease_end,
        claimed, expiry, on_lapse, started, sweep_at)
    VALUES ($1, $2, 1, 0, $3, 1, 0, false, 0, $4, lease_ends, at, expires, $5, false, expires)
    ON CONFLICT (scope, key) DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN at;
END $idem$;
INSERT INTO {versions} (version) VALUES ({version});
"#,
        claim_function = names.claim_function(),
        seed = names.seed("key"),
    );
    vec![Migration { version, sql }]
}

/// What is in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Version(i32),
}

/// Looks which version the schema has.
pub(crate) async fn find(client: &Client, names: &Names, operation: &'static str) -> Result<Found, StoreError> {
    // Unnamed, as everything here: it runs once, maybe through a pooler.
    let newest = format!("SELECT coalesce(max(version), 0) FROM {}", names.versions());
    match client.query_typed_one(&newest, &[]).await {
        Ok(row) => Ok(Found::Version(row.try_get(0).map_err(|error| postgres_error(operation, error))?)),
        Err(error) if is_missing(&error) => Ok(Found::Nothing),
        Err(error) => Err(postgres_error(operation, error)),
    }
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::UNDEFINED_TABLE) || code == Some(&SqlState::INVALID_SCHEMA_NAME)
}

/// Refuses every version but the one that this code works with.
pub(crate) fn check_version(found: Found, names: &Names, operation: &'static str) -> Result<(), StoreError> {
    let table = names.records();
    let message = match found {
        Found::Version(VERSION) => return Ok(()),
        Found::Nothing => format!(
            "there is no table {table} in this database; run PostgresStore::migrate, or the SQL that \
             Builder::migrations gives"
        ),
        Found::Version(version) if version < VERSION => format!(
            "the schema of {table} has version {version}, and this version of idem needs {VERSION}; run \
             PostgresStore::migrate, or the SQL that Builder::migrations gives"
        ),
        Found::Version(version) => format!(
            "the schema of {table} has version {version}, and this version of idem knows {VERSION} at most; update idem"
        ),
    };
    Err(store_error(StoreErrorKind::Configuration, operation, message))
}

fn not_made(operation: &'static str, names: &Names, error: tokio_postgres::Error) -> StoreError {
    if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return postgres_error(operation, error);
    }
    let message = format!(
        "the user lacks the rights to make {} ({}); grant it CREATE on the schema, or have somebody run the SQL that \
         Builder::migrations gives and say Builder::without_migrating",
        names.records(),
        described(&error)
    );
    store_error(StoreErrorKind::Configuration, operation, message).with_source(error)
}

/// Brings the schema to this code's version. Any number of servers may do so at once.
pub(crate) async fn migrate(client: &mut Client, names: &Names, operation: &'static str) -> Result<(), StoreError> {
    let failed = |error| postgres_error(operation, error);
    // Without the rights to change anything it is still right if there is nothing to change.
    match find(client, names, operation).await? {
        Found::Version(version) if version >= VERSION => {
            return check_version(Found::Version(version), names, operation);
        }
        Found::Nothing | Found::Version(_) => {}
    }
    // The isolation matters: whoever had to wait for the lock must see what was done meanwhile.
    let transaction = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::ReadCommitted)
        .read_only(false)
        .start()
        .await
        .map_err(failed)?;
    // Others may be at it, and the table may be in use: the caller's time limit is the only one.
    let lock = format!(
        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({})",
        names.seed("migrate")
    );
    transaction.batch_execute(&lock).await.map_err(failed)?;
    let relation = names.versions();
    let exists: bool = transaction
        .query_typed_one("SELECT to_regclass($1) IS NOT NULL", &[(&relation, tokio_postgres::types::Type::TEXT)])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(failed)?;
    let version = match exists {
        true => match find(transaction.client(), names, operation).await? {
            Found::Version(version) => version,
            Found::Nothing => 0,
        },
        false => 0,
    };
    for migration in migrations(names).iter().filter(|migration| migration.version > version) {
        transaction.batch_execute(&migration.sql).await.map_err(|error| not_made(operation, names, error))?;
        tracing::info!(version = migration.version, table = names.records(), "the schema was brought to this version");
    }
    transaction.commit().await.map_err(failed)?;
    check_version(find(client, names, operation).await?, names, operation)
}
