//! The Redis store of idem: native claims, and honest about what Redis can lose.
//!
//! # When to use it
//!
//! For services that have a Redis (7 or newer) or Valkey anyway, want claims as fast as it can give them, and can bear
//! what the table below says: a failover may forget the last moments, and an operation whose record it forgets runs again.
//! Where that must never happen, keep a unique constraint where the business data is (see [below](#what-can-be-lost)), or
//! the records in the same SQL database.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use idem_core::Store;
//! use idem_redis::RedisStore;
//!
//! # async fn open() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect("rediss://app:secret@cache.internal:6379").await?;
//! let store: Arc<dyn Store> = Arc::new(store);
//! # Ok(()) }
//! ```
//!
//! A single server (`redis://`), one that Sentinels watch (`redis-sentinel://`) and a cluster (`redis-cluster://`) alike,
//! each also with TLS (`rediss…`).
//!
//! # What it promises
//!
//! - Of any number of claims on one key, from any processes, exactly one owns it, as long as the server forgets nothing. A
//!   first claim is one native command, `SET … NX GET PX`.
//! - A takeover, and every write of an attempt, is a script that touches one key: it compares the token and number, or the
//!   whole value that was judged, and writes once, last. An attempt that lost its record can write over nobody's.
//! - No value is ever without an expiry. One that another hand took it from (`PERSIST`) is refused as corrupt wherever the
//!   clock decides; a replay needs none.
//! - Leases and retentions are judged by the server's clock alone, to the millisecond: from the time that the server itself
//!   has left for a value.
//! - A command that was cut off is sent again, and one that took too long may still be applied later: by the client, within
//!   about as much time again, and by a server that stood still, when it goes on. Both are safe for every one of them. A
//!   first claim that is applied after its caller gave up is nobody's, and keeps its key until its lease ends; repeated
//!   with its token it is that caller's. A future that is dropped disturbs nobody.
//! - An operation on one key ends within its time limit ([`Builder::timeout`], 2 seconds) with an error of kind
//!   unavailable, whatever the server does; what waits meanwhile is bounded, and the next operation finds a server that is
//!   back by itself. Of a cluster, a node that fails holds up its own keys alone. Walks through all keys
//!   ([`lapsed`](idem_core::Store::lapsed), [`purge`](idem_core::Store::purge)) and the check have the limit for each of
//!   their steps.
//!
//! Instants in records (when it was claimed, when its lease ends) are told by the client, which knows the server's clock
//! from a look at it now and then: they are earlier than they should be by up to a round trip and by what the server took
//! to get to the command, and never later, unless the server's clock was set back in the last ten minutes or the nodes of a
//! cluster show different times. How long anything lasts is exact, whatever they say. Where the clock of a server is set,
//! or a replica with another clock is promoted, leases and retentions move by the difference.
//!
//! # What it costs
//!
//! | | round trips |
//! |---|---|
//! | first claim, replay, reuse, unknown, completion, renewal, read | 1 |
//! | conflict, takeover, claim after a release; release, forget, hold, checkpoint, resolve | 2 |
//! | a claim repeated with its token | 3 |
//! | with [`min_replicas`](Builder::min_replicas), beside that: any claim, to see that there is something to write; one that writes, and a resolve, to wait for the replicas | + 1, + 1 |
//!
//! The first claim of a store that was not checked asks for the time before that.
//!
//! Everything goes through one connection (one for each master of a cluster) and is pipelined there; a second one listens
//! for the ends of attempts, from the check or the first wait on; claims that wait for replicas have up to 32 more. The end
//! of an attempt is published, and in a cluster every node hears that. Redis has no index, so
//! [`lapsed`](idem_core::Store::lapsed) and [`purge`](idem_core::Store::purge) walk through all keys of the server: rarely,
//! and not while a request waits. Expired records leave by themselves, and [`sweep`](idem_core::Store::sweep) has nothing
//! to do.
//!
//! # What can be lost
//!
//! Redis answers before its replicas have what it answered, and before its disk has. What it then loses are records as
//! they were written last:
//!
//! | lost | what comes of it |
//! |---|---|
//! | a first claim, or a record altogether | another claim owns the key: the operation **runs again, and can't tell** (it is number 1, no repeat). If the first attempt still runs, both do; only one result is recorded, and the other attempt is superseded |
//! | a completion | the record is in progress again: a conflict until the lease ends, then the operation **runs again, as a repeat**. The answer that was given may differ from the one that is recorded then. Under hold it is unknown |
//! | a takeover, a resolve, a claim after a release | the record is the earlier attempt's again, and the next claim gives the same number to another token: **runs again, as a repeat** (under hold it is unknown) |
//! | a claim after a forget | the key is free for any request again, and the operation **runs again, and can't tell** |
//! | a forget | until the lease ends the key is a conflict, then it is taken over as a repeat; a corrected request under it is a reuse until the record expires |
//! | a release, a hold, a checkpoint | until the lease ends the key is a conflict, then it is taken over as a repeat (under hold it is unknown); a step whose checkpoint is lost runs again |
//! | a renewal | the lease ends earlier, and may be taken over while the attempt runs, which is superseded |
//! | a purge | the records are there again |
//!
//! In no case does an attempt write over what another one recorded. How much may be lost:
//!
//! | | without `min_replicas` | with [`min_replicas`](Builder::min_replicas) |
//! |---|---|---|
//! | a replica is promoted (Sentinel, Cluster, by hand) | what it had not received: milliseconds if it keeps up, everything since its connection broke if it did not | claims and resolves that were answered are on so many replicas, and stay if one of those is promoted, which the server does not promise where there are more. Other writes as without |
//! | the old primary went on alone (a partition) | what it took until it noticed, by all of its clients | claims are unavailable there, unless so many replicas are on its side. Other writes as without |
//! | the server crashes and starts again: `appendfsync always` | nothing that was answered | the same |
//! | … `appendfsync everysec` | a second or two | the same |
//! | … no append-only file | everything since the last snapshot, or everything | the same |
//! | memory is full: `noeviction` | nothing: claims are unavailable (those that would be replays too, since they may have to write), a completion that is refused leaves its record in progress, and is retried | the same |
//! | … an evicting `maxmemory-policy` | any record, at any time. Refused, unless [accepted](Builder::accept_eviction) | the same |
//!
//! `min-replicas-to-write` in the server's own configuration bounds how long a primary goes on alone. The layer behind all
//! of this is the business data's own: give each effect a unique key (`attempt.downstream_key` of the runner, or the
//! idempotency key itself, in a column with a unique constraint, or in the idempotency header of the service that is
//! called), so that an operation that runs again finds what it did.
//!
//! # What is in the server
//!
//! Under a prefix (`idem`, or [`Builder::prefix`]) one string per record, `PREFIX:r:SCOPE:KEY`, in a versioned binary form
//! whose third byte is the state (`p`, `r`, `h`, `d`). `%`, `:`, `{` and `}` in scope and key are written as `%` and two
//! digits, so no two are alike, and none says which node of a cluster it is on. A record of a newer version is refused, and
//! never written over. Look, and change nothing by hand. `PREFIX:probe-…` is there for a moment during a check, and
//! `PREFIX:ended` is the channel on which waits are woken.
//!
//! A user of the store's own needs
//! `~PREFIX:* &PREFIX:* +set +get +del +pttl +eval +evalsha +scan +publish +subscribe +info +time +wait`, also
//! `+role` behind Sentinels, `+select` for a database by number, `+cluster +asking` in a cluster.
//!
//! [`Store::check`](idem_core::Store::check) refuses a server that is too old, a replica, an evicting `maxmemory-policy`,
//! fewer replicas than `min_replicas`, and missing rights, on every master of a cluster, and warns of one without an
//! append-only file.

mod check;
mod clock;
mod directory;
mod error;
mod line;
mod link;
mod listen;
mod listing;
mod names;
mod options;
mod records;
mod replicas;
mod scripts;
mod store;
mod tls;
mod url;
mod wait;

pub use crate::{
    options::{Builder, OpenError},
    store::RedisStore,
};
