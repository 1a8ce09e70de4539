//! Calls to the server: bounded in number and in time.

use std::time::Duration;

use bytes::Bytes;
use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike, KeysInterface, LuaInterface},
    types::{Expiration, SetOptions, Value, scripts::Script},
};
use idem_core::{StoreError, StoreErrorKind, Timestamp};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::timeout,
};

use crate::{
    error::{redis_error, store_error},
    replicas::Replicas,
};

/// How many calls may be under way at a time. The client has no bound of its own on what it has sent.
const IN_FLIGHT: usize = 4096;

/// The connection that everything goes through, but for what waits for replicas.
pub(crate) struct Link {
    client: Client,
    pub(crate) timeout: Duration,
    in_flight: Semaphore,
    connected: OnceCell<()>,
    pub(crate) replicas: Option<Replicas>,
}

/// What a script gave.
#[derive(Debug)]
pub(crate) enum Reply {
    /// It wrote.
    Written,
    /// It wrote nothing: there is this value, and by the server's clock it is now.
    Found { value: Bytes, now: Timestamp },
    /// It wrote nothing: there is no value.
    Absent,
}

/// The arguments that every script takes first.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) now: Option<Timestamp>,
    /// The channel and the word to say there if it writes.
    pub(crate) ends: Option<(String, String)>,
}

impl Link {
    pub(crate) fn new(client: Client, timeout: Duration, replicas: Option<Replicas>) -> Self {
        Self { client, timeout, in_flight: Semaphore::new(IN_FLIGHT), connected: OnceCell::new(), replicas }
    }

    /// The client, connected or trying to.
    pub(crate) async fn client(&self) -> &Client {
        self.connected
            .get_or_init(|| async {
                // It goes on by itself, and tries again for as long as it takes.
                drop(self.client.connect());
            })
            .await;
        &self.client
    }

    pub(crate) fn too_slow(&self, operation: &'static str) -> StoreError {
        let message = format!("the server's answer took longer than {:?} (Builder::timeout)", self.timeout);
        store_error(StoreErrorKind::Unavailable, operation, message)
    }

    /// Runs a call within the time limit, when there is room for it.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        let bounded = async {
            // Never closed.
            let _room = self.in_flight.acquire().await;
            call.await
        };
        match timeout(self.timeout, bounded).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(redis_error(operation, error)),
            Err(_) => Err(self.too_slow(operation)),
        }
    }

    /// Sets the value if there is none. Gives the one that there is.
    pub(crate) async fn set_if_absent(
        &self,
        operation: &'static str,
        key: &str,
        value: Bytes,
        millis: i64,
    ) -> Result<Option<Bytes>, StoreError> {
        let client = self.client().await;
        let expiry = Some(Expiration::PX(millis));
        let options = Some(SetOptions::NX);
        if let Some(replicas) = &self.replicas {
            let set = async {
                let own = replicas.client().await;
                let found: Option<Bytes> = own.set(key, value, expiry, options, true).await?;
                match found {
                    Some(found) => Ok(Ok(Some(found))),
                    None => Ok(replicas.have_it(&own, key).await?.map(|()| None)),
                }
            };
            return self.call(operation, set).await?;
        }
        self.call(operation, client.set(key, value, expiry, options, true)).await
    }

    /// Runs a script: by its digest, and by its body where the node does not know it.
    pub(crate) async fn script(
        &self,
        operation: &'static str,
        script: &Script,
        call: &Call,
        arguments: Vec<Value>,
    ) -> Result<Reply, StoreError> {
        let client = self.client().await;
        let reply = self.call(operation, run(client, script, call, arguments)).await?;
        parse(reply, operation)
    }

    /// The same for a script that claims, which has to reach as many replicas as were asked for.
    pub(crate) async fn claiming_script(
        &self,
        operation: &'static str,
        script: &Script,
        call: &Call,
        arguments: Vec<Value>,
    ) -> Result<Reply, StoreError> {
        let Some(replicas) = &self.replicas else {
            return self.script(operation, script, call, arguments).await;
        };
        let claim = async {
            let own = replicas.client().await;
            let reply = run(&own, script, call, arguments).await?;
            match wrote(&reply) {
                true => Ok(replicas.have_it(&own, &call.key).await?.map(|()| reply)),
                false => Ok(Ok(reply)),
            }
        };
        parse(self.call(operation, claim).await??, operation)
    }
}

async fn run(client: &Client, script: &Script, call: &Call, arguments: Vec<Value>) -> Result<Value, Error> {
    let (channel, word) = call.ends.clone().unwrap_or_default();
    let now = call.now.map(|now| now.as_millis().to_string()).unwrap_or_default();
    let mut all: Vec<Value> = vec![now.into(), channel.into(), word.into()];
    all.extend(arguments);
    match client.evalsha(script.sha1().clone(), vec![call.key.as_str()], all.clone()).await {
        // After a restart, a failover or a flush. The body brings it to the node again.
        Err(error) if error.details().starts_with("NOSCRIPT") => {
            let body = script.lua().cloned().unwrap_or_default();
            client.eval(body, vec![call.key.as_str()], all).await
        }
        answer => answer,
    }
}

fn wrote(reply: &Value) -> bool {
    matches!(reply, Value::Array(parts) if parts.first().and_then(Value::as_i64) == Some(1))
}

fn parse(reply: Value, operation: &'static str) -> Result<Reply, StoreError> {
    let odd =
        || store_error(StoreErrorKind::Corrupt, operation, "a script's answer has another form than it must have");
    let Value::Array(parts) = reply else { return Err(odd()) };
    let mut parts = parts.into_iter();
    match (parts.next().and_then(|part| part.as_i64()), parts.next(), parts.next()) {
        (Some(1), ..) => Ok(Reply::Written),
        (Some(0), None, None) => Ok(Reply::Absent),
        (Some(0), Some(value), Some(now)) => {
            let (value, now) = (value.into_bytes().ok_or_else(odd)?, now.as_i64().ok_or_else(odd)?);
            Ok(Reply::Found { value, now: crate::records::instant(now) })
        }
        _ => Err(odd()),
    }
}
