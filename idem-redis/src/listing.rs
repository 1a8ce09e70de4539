//! What is done to many records at a time: by looking through the whole key space, as Redis has no index.

use std::collections::BTreeMap;

use bytes::Bytes;
use fred::{error::Error, types::Key as RedisKey};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use idem_core::{Key, Lapsed, Scope, State, StoreError};
use tokio::time::timeout;

use crate::{
    RedisStore,
    error::redis_error,
    link::{Call, Reply},
    store::Seen,
    wait,
};

/// How many keys a step of the server's looks at.
const STEP: u32 = 1_000;

/// How many records are looked at at a time.
const AT_A_TIME: usize = 64;

impl RedisStore {
    /// Removes records past their retention. The server has removed them by itself, unless a test moves the clock.
    pub(crate) async fn remove_expired(&self, limit: usize) -> Result<usize, StoreError> {
        if self.inner.clock.set_to().is_none() {
            return Ok(0);
        }
        let mut removed = 0;
        let mut names = self.names("sweep", None).await?;
        while removed < limit
            && let Some((scope, key)) = self.next("sweep", &mut names).await?
        {
            let Some(seen) = self.look("sweep", &scope, &key).await? else { continue };
            if !seen.stored.record.is_live(seen.now) && self.remove("sweep", &scope, &key, seen.value).await? {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Looks at every record, and keeps the first `limit` that wait for someone.
    pub(crate) async fn list_lapsed(
        &self,
        after: Option<(&Scope, &Key)>,
        limit: usize,
    ) -> Result<Vec<Lapsed>, StoreError> {
        let mut first = BTreeMap::new();
        let names = self.names("lapsed", None).await?;
        let mut seen = std::pin::pin!(
            self.places("lapsed", names)
                .map(async |place| {
                    let (scope, key) = place?;
                    let is_behind = after.is_none_or(|after| (&scope, &key) > after);
                    let seen = if is_behind { self.look("lapsed", &scope, &key).await? } else { None };
                    Ok::<_, StoreError>((scope, key, seen))
                })
                .buffer_unordered(AT_A_TIME)
        );
        while let Some(looked) = seen.next().await {
            let (scope, key, Some(Seen { stored, now, .. })) = looked? else { continue };
            let record = stored.record;
            let waits = record.state == State::Held || record.is_lapsed(now);
            if waits && record.is_live(now) {
                first.insert((scope, key), record);
                if first.len() > limit {
                    first.pop_last();
                }
            }
        }
        Ok(first.into_iter().map(|((scope, key), record)| Lapsed { scope, key, record }).collect())
    }

    /// Removes a scope's records, whatever they are.
    pub(crate) async fn remove_scope(&self, scope: &Scope, limit: usize) -> Result<usize, StoreError> {
        let mut removed = 0;
        let mut names = self.names("purge", Some(scope)).await?;
        while removed < limit
            && let Some((found, key)) = self.next("purge", &mut names).await?
        {
            if found != *scope {
                continue;
            }
            while let Some(value) = self.value("purge", scope, &key).await? {
                if self.remove("purge", scope, &key, value).await? {
                    removed += 1;
                    break;
                }
            }
        }
        Ok(removed)
    }

    /// Removes a value, if it is still this one.
    async fn remove(
        &self,
        operation: &'static str,
        scope: &Scope,
        key: &Key,
        value: Bytes,
    ) -> Result<bool, StoreError> {
        let call = self.ending(scope, key);
        let reply = self.inner.link.script(operation, &self.inner.scripts.remove, &call, vec![value.into()]).await?;
        let is_removed = matches!(reply, Reply::Written);
        if is_removed {
            self.inner.waiters.wake(wait::bell(scope, key));
        }
        Ok(is_removed)
    }

    /// The value as it is, readable or not.
    async fn value(&self, operation: &'static str, scope: &Scope, key: &Key) -> Result<Option<Bytes>, StoreError> {
        let call: Call = self.call(scope, key);
        let reply = self.inner.link.script(operation, &self.inner.scripts.look, &call, Vec::new()).await?;
        Ok(match reply {
            Reply::Found { value, .. } => Some(value),
            Reply::Absent | Reply::Written => None,
        })
    }

    /// The names of the store's records, or of a scope's, on every node. Some may come twice.
    async fn names(
        &self,
        operation: &'static str,
        scope: Option<&Scope>,
    ) -> Result<BoxStream<'static, Result<RedisKey, Error>>, StoreError> {
        let pattern = self.inner.names.pattern(scope);
        let masters = self.inner.link.masters(operation).await?;
        let names =
            masters.into_iter().map(|(_, client)| client.scan_buffered(pattern.clone(), Some(STEP), None).boxed());
        Ok(stream::select_all(names).boxed())
    }

    /// The places of the records that have these names.
    fn places<'a>(
        &'a self,
        operation: &'static str,
        names: BoxStream<'static, Result<RedisKey, Error>>,
    ) -> BoxStream<'a, Result<(Scope, Key), StoreError>> {
        stream::unfold(Some(names), move |names| async move {
            let mut names = names?;
            match self.next(operation, &mut names).await {
                Ok(place) => place.map(|place| (Ok(place), Some(names))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    /// The next name that is a record's. Each step has the time limit for itself.
    async fn next(
        &self,
        operation: &'static str,
        names: &mut BoxStream<'static, Result<RedisKey, Error>>,
    ) -> Result<Option<(Scope, Key)>, StoreError> {
        loop {
            let Ok(next) = timeout(self.inner.link.timeout, names.next()).await else {
                return Err(self.inner.link.too_slow(operation));
            };
            match next {
                None => return Ok(None),
                Some(Err(error)) => return Err(redis_error(operation, error)),
                Some(Ok(name)) => {
                    if let Some(place) = name.as_str().and_then(|name| self.inner.names.parse(name)) {
                        return Ok(Some(place));
                    }
                }
            }
        }
    }
}
