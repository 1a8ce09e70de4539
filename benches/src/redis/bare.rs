//! The base: commands that do nothing but set and get, through the same client in the same configuration.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fred::{
    clients::Client,
    interfaces::{ClientLike, KeysInterface, ServerInterface},
    types::{
        Builder, Expiration,
        config::{Config, ConnectionConfig, ReconnectPolicy, UnresponsiveConfig},
    },
};
use idem_core::Claim;

use crate::{
    Failure, input,
    redis::place::{Place, name, names},
    rounds::{Operation, Side, in_flight},
};

/// How long a value stays, in milliseconds: as long as a record, a day.
const STAYS: i64 = 86_400_000;

/// A client with one connection, set up as the store's is.
#[derive(Clone)]
pub(crate) struct Bare(Client);

/// Sets of new keys, one for each operation.
struct Sets {
    client: Client,
    names: Vec<String>,
    value: Bytes,
}

/// Gets, over and over.
struct Gets {
    client: Client,
    names: Vec<String>,
}

impl Bare {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        let limit = Duration::from_secs(2);
        let mut builder = Builder::from_config(Config::from_url(url)?);
        builder.set_policy(ReconnectPolicy::new_exponential(0, 20, 1_000, 2));
        builder.with_connection_config(|connection: &mut ConnectionConfig| {
            connection.connection_timeout = limit;
            connection.internal_command_timeout = limit;
            connection.reconnect_on_auth_error = true;
            connection.max_command_attempts = 3;
            connection.max_command_buffer_len = 16_384;
            connection.unresponsive = UnresponsiveConfig { max_timeout: Some(limit), interval: limit / 4 };
        });
        builder.with_performance_config(|performance| performance.default_command_timeout = limit);
        let client = builder.build()?;
        client.init().await?;
        Ok(Self(client))
    }

    /// `SET key value PX ms` of new keys, so many at a time. The keys are gone afterwards.
    pub(crate) fn sets<'a>(&self, place: &'a Place, database: usize, value: &Bytes, tasks: usize) -> Side<'a> {
        let (client, value) = (self.0.clone(), value.clone());
        Box::new(move |count| {
            let (client, value) = (client.clone(), value.clone());
            Box::pin(async move {
                let names = names(&input::claims("new", count)?);
                let sets = Arc::new(Sets { client, names: names.clone(), value });
                let took = in_flight(tasks, count, sets).await?;
                place.remove(database, names);
                Ok(took)
            })
        })
    }

    /// `GET` of these claims' values, over and over, so many at a time.
    pub(crate) fn gets<'a>(&self, claims: &[Claim], tasks: usize) -> Side<'a> {
        let gets = Arc::new(Gets { client: self.0.clone(), names: claims.iter().map(name).collect() });
        Box::new(move |count| Box::pin(in_flight(tasks, count, Arc::clone(&gets))))
    }

    /// `SET key value PX ms`.
    pub(crate) async fn set(&self, name: &str, value: &Bytes) -> Result<(), Failure> {
        set(&self.0, name, value).await
    }

    /// `WAIT 1 ms`. It holds up what comes after it on the connection.
    pub(crate) async fn wait(&self) -> Result<(), Failure> {
        match self.0.wait::<i64>(1, 1_000).await? {
            0 => Err("the replica did not follow within a second".into()),
            _ => Ok(()),
        }
    }
}

async fn set(client: &Client, name: &str, value: &Bytes) -> Result<(), Failure> {
    Ok(client.set::<(), _, _>(name, value.clone(), Some(Expiration::PX(STAYS)), None, false).await?)
}

impl Operation for Sets {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        set(&self.client, &self.names[number], &self.value).await
    }
}

impl Operation for Gets {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        match self.client.get::<Option<Bytes>, _>(&self.names[number % self.names.len()]).await? {
            Some(_) => Ok(()),
            None => Err("a record that is done is not there".into()),
        }
    }
}
