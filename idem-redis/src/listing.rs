//! What is done to many records at a time: by looking through the whole key space, as Redis has no index.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use fred::{clients::Client, types::Value};
use futures_util::{Stream, StreamExt, stream};
use idem_core::{Key, Lapsed, Scope, State, StoreError};

use crate::{RedisStore, link::Reply, store::Seen, wait};

/// Where a walk through a node's keys begins, and what the node says when it is at its end.
const START: &str = "0";

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
                    let seen = if is_behind { self.look_if_open(&scope, &key).await? } else { None };
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
            while let Some(value) = self.inner.link.value("purge", &self.inner.names.record(scope, &key)).await? {
                if self.remove("purge", scope, &key, value).await? {
                    removed += 1;
                    break;
                }
            }
        }
        Ok(removed)
    }

    /// What is there, unless it is done: a record that waits for nobody is not sent.
    async fn look_if_open(&self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        self.look_with("lapsed", scope, key, vec![Value::from("open")]).await
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

    /// The names of the store's records, or of a scope's, on every node.
    async fn names(&self, operation: &'static str, scope: Option<&Scope>) -> Result<Names, StoreError> {
        let masters = self.inner.link.masters(operation).await?.into_iter().map(|(_, client)| client).collect();
        Ok(Names { pattern: self.inner.names.pattern(scope), masters, cursor: START.into(), page: VecDeque::new() })
    }

    /// The places of the records that have these names.
    fn places(
        &self,
        operation: &'static str,
        names: Names,
    ) -> impl Stream<Item = Result<(Scope, Key), StoreError>> + Send {
        stream::try_unfold(names, move |mut names| async move {
            Ok(self.next(operation, &mut names).await?.map(|place| (place, names)))
        })
    }

    /// The next name that is a record's. Some come twice. Each page has the time limit for itself.
    async fn next(&self, operation: &'static str, names: &mut Names) -> Result<Option<(Scope, Key)>, StoreError> {
        loop {
            while let Some(name) = names.page.pop_front() {
                if let Some(place) = self.inner.names.parse(&name) {
                    return Ok(Some(place));
                }
            }
            let Some(master) = names.masters.front() else { return Ok(None) };
            let page = self.inner.link.page(operation, master.clone(), &names.cursor, &names.pattern, STEP);
            let (cursor, page) = page.await?;
            names.page = page.into();
            if cursor == START {
                names.masters.pop_front();
            }
            names.cursor = cursor;
        }
    }
}

/// What is left of a walk through all keys: page by page, and the next one only when it is asked for.
struct Names {
    pattern: String,
    masters: VecDeque<Client>,
    cursor: String,
    page: VecDeque<String>,
}
