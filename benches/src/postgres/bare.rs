//! The base: statements that do nothing but insert and read, through the same driver.

use std::{future, sync::Arc};

use idem_core::{Claim, Response};
use idem_postgres::{
    deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod},
    tokio_postgres::{
        self, Client, NoTls, Row, Statement,
        types::{ToSql, Type},
    },
};

use crate::{
    Failure, input,
    postgres::POOL,
    rounds::{Operation, Side, in_flight},
};

const INSERT_TYPES: [Type; 9] =
    [Type::TEXT, Type::TEXT, Type::BYTEA, Type::BYTEA, Type::INT8, Type::INT8, Type::INT8, Type::INT2, Type::INT8];

const READ_TYPES: [Type; 2] = [Type::TEXT, Type::TEXT];

/// Runs the bare statements on a table.
#[derive(Clone)]
pub(crate) struct Bare(Arc<Inner>);

struct Inner {
    connections: Connections,
    insert: String,
    read: String,
}

enum Connections {
    /// One, with its statements prepared; or none, where they have no name.
    One(Client, Option<(Statement, Statement)>),
    Pool(Pool, Named),
}

/// Whether statements are prepared once for each connection.
type Named = bool;

/// Inserts, one for each operation.
struct Inserts {
    bare: Bare,
    rows: Vec<NewRow>,
}

/// Reads, over and over.
struct Reads {
    bare: Bare,
    keys: Vec<(String, String)>,
}

/// The values of a row as a first claim writes it. The client has computed all of them.
struct NewRow {
    scope: String,
    key: String,
    token: [u8; 16],
    fingerprint: Vec<u8>,
    lease_end: i64,
    claimed: i64,
    expiry: i64,
    on_lapse: i16,
}

impl NewRow {
    fn of(claim: &Claim) -> Self {
        const NOW: i64 = 1_800_000_000_000;
        Self {
            scope: claim.scope().as_str().into(),
            key: claim.key().as_str().into(),
            token: *claim.token().as_bytes(),
            fingerprint: claim.fingerprint().as_bytes().into(),
            lease_end: NOW + 30_000,
            claimed: NOW,
            expiry: NOW + 86_400_000,
            on_lapse: 0,
        }
    }
}

impl Bare {
    /// Through one connection, without a pool.
    pub(crate) async fn one(url: &str, table: &str, named: Named) -> Result<Self, Failure> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let (insert, read) = (insert(table), read(table));
        let prepared = match named {
            true => Some((client.prepare(&insert).await?, client.prepare(&read).await?)),
            false => None,
        };
        Ok(Self(Arc::new(Inner { connections: Connections::One(client, prepared), insert, read })))
    }

    /// Through a pool, as most services have one.
    pub(crate) fn pool(url: &str, table: &str, named: Named) -> Result<Self, Failure> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(url.parse()?, NoTls, recycling);
        let connections = Connections::Pool(Pool::builder(manager).max_size(POOL).build()?, named);
        Ok(Self(Arc::new(Inner { connections, insert: insert(table), read: read(table) })))
    }

    /// Inserts of new keys in a scope, so many at a time.
    pub(crate) fn insertions<'a>(&self, scope: &'a str, tasks: usize) -> Side<'a> {
        let bare = self.clone();
        Box::new(move |count| match bare.inserts(scope, count) {
            Ok(inserts) => Box::pin(in_flight(tasks, count, inserts)),
            Err(failure) => Box::pin(future::ready(Err(failure))),
        })
    }

    /// So many inserts of new keys.
    pub(crate) fn inserts(&self, scope: &str, count: usize) -> Result<Arc<impl Operation>, Failure> {
        let rows = (0..count).map(|_| Ok(NewRow::of(&input::claim(scope)?))).collect::<Result<_, Failure>>()?;
        Ok(Arc::new(Inserts { bare: self.clone(), rows }))
    }

    /// Reads of these claims' rows, over and over, so many at a time.
    pub(crate) fn reads<'a>(&self, claims: &[Claim], tasks: usize) -> Side<'a> {
        let keys = claims.iter().map(|claim| (claim.scope().as_str().into(), claim.key().as_str().into())).collect();
        let reads = Arc::new(Reads { bare: self.clone(), keys });
        Box::new(move |count| Box::pin(in_flight(tasks, count, Arc::clone(&reads))))
    }

    /// Runs statements without results on the one connection.
    pub(crate) async fn run(&self, sql: &str) -> Result<(), Failure> {
        match &self.0.connections {
            Connections::One(client, _) => Ok(client.batch_execute(sql).await?),
            Connections::Pool(..) => Err("it goes to one connection of several".into()),
        }
    }

    async fn insert(&self, row: &NewRow) -> Result<u64, Failure> {
        let NewRow { scope, key, token, fingerprint, lease_end, claimed, expiry, on_lapse } = row;
        let values: [&(dyn ToSql + Sync); 9] =
            [scope, key, &&token[..], fingerprint, lease_end, claimed, expiry, on_lapse, expiry];
        let Inner { connections, insert, .. } = &*self.0;
        Ok(match connections {
            Connections::One(client, Some((prepared, _))) => client.execute(prepared, &values).await?,
            Connections::One(client, None) => client.execute_typed(insert, &typed(&values, &INSERT_TYPES)).await?,
            Connections::Pool(pool, true) => {
                let client = pool.get().await?;
                client.execute(&client.prepare_typed_cached(insert, &INSERT_TYPES).await?, &values).await?
            }
            Connections::Pool(pool, false) => {
                pool.get().await?.execute_typed(insert, &typed(&values, &INSERT_TYPES)).await?
            }
        })
    }

    async fn read(&self, scope: &str, key: &str) -> Result<Row, Failure> {
        let values: [&(dyn ToSql + Sync); 2] = [&scope, &key];
        let Inner { connections, read, .. } = &*self.0;
        Ok(match connections {
            Connections::One(client, Some((_, prepared))) => client.query_one(prepared, &values).await?,
            Connections::One(client, None) => client.query_typed_one(read, &typed(&values, &READ_TYPES)).await?,
            Connections::Pool(pool, true) => {
                let client = pool.get().await?;
                client.query_one(&client.prepare_typed_cached(read, &READ_TYPES).await?, &values).await?
            }
            Connections::Pool(pool, false) => {
                pool.get().await?.query_typed_one(read, &typed(&values, &READ_TYPES)).await?
            }
        })
    }
}

impl Operation for Inserts {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        match self.bare.insert(&self.rows[number]).await? {
            1 => Ok(()),
            rows => Err(format!("an insert of a new key wrote {rows} rows").into()),
        }
    }
}

impl Operation for Reads {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        let (scope, key) = &self.keys[number % self.keys.len()];
        let row = self.bare.read(scope, key).await?;
        let response: Option<&[u8]> = row.try_get("response")?;
        Response::decode(response.ok_or("a row that is done has no response")?.to_vec())?;
        Ok(())
    }
}

/// The same columns as a claim writes; what is the same for all first claims is written in the statement.
fn insert(table: &str) -> String {
    format!(
        "INSERT INTO {table} (scope, key, format, state, token, number, origin, repeat, lapses, fingerprint, lease_end,
            claimed, expiry, on_lapse, started, sweep_at)
        VALUES ($1, $2, 1, 0, $3, 1, 0, false, 0, $4, $5, $6, $7, $8, false, $9)
        ON CONFLICT DO NOTHING"
    )
}

fn read(table: &str) -> String {
    format!("SELECT * FROM {table} WHERE scope = $1 AND key = $2")
}

fn typed<'a>(values: &[&'a (dyn ToSql + Sync)], types: &[Type]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    values.iter().copied().zip(types.iter().cloned()).collect()
}
