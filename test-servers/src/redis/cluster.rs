//! A Redis Cluster of a test's own.

use std::io;
use std::time::{Duration, Instant};

use super::client::{RedisConnection, Reply, info_value};
use super::private::{PrivateRedis, RedisSettings};

/// How many slots a cluster has.
const SLOTS: usize = 16_384;

/// How long a primary and its replica have for a failover by agreement.
const FAILOVER: Duration = Duration::from_secs(6);

/// A Redis Cluster of a test's own: each node is a [`PrivateRedis`], which a test may kill, pause and look into. Ends
/// when it is dropped, and with this process.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<PrivateRedis>,
}

impl RedisCluster {
    /// Starts a cluster with so many masters, which share the slots evenly, and so many replicas of each. When this
    /// returns, all nodes know each other and serve, and replicas have a copy and follow.
    ///
    /// A master that does not answer the others for 2 s counts as failed, and a replica takes its place about a second
    /// later, if most of the masters are left to agree: with three of them, one may fail.
    ///
    /// # Panics
    ///
    /// As [`PrivateRedis::start`], if `masters` is not from 1 to 100, or if the cluster does not come to be.
    #[must_use]
    pub fn start(masters: usize, replicas_each: usize) -> Self {
        Self::start_with(RedisSettings::new(), masters, replicas_each)
    }

    /// As [`RedisCluster::start`], with settings for all nodes, such as another `cluster-node-timeout` (milliseconds).
    ///
    /// # Panics
    ///
    /// As [`RedisCluster::start`].
    #[must_use]
    pub fn start_with(settings: RedisSettings, masters: usize, replicas_each: usize) -> Self {
        assert!((1..=100).contains(&masters), "a cluster of {masters} masters");
        let settings = settings.for_peers().before(&[
            ("cluster-enabled", "yes"),
            ("cluster-node-timeout", "2000"),
            // A replica takes over however long it was cut off, and stays with its master.
            ("cluster-replica-validity-factor", "0"),
            ("cluster-allow-replica-migration", "no"),
            // Nodes list no replica before something was written to its master, and pings count.
            ("repl-ping-replica-period", "1"),
        ]);
        let nodes = (0..masters * (1 + replicas_each)).map(|_| PrivateRedis::start(settings.clone())).collect();
        let cluster = Self { nodes };
        cluster.join(masters);
        cluster
    }

    /// The address for clients, `redis-cluster://[default:password@]127.0.0.1:port?node=127.0.0.1:port&node=…`. It names
    /// all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let first = self.nodes[0].url().replacen("redis://", "redis-cluster://", 1);
        let others: Vec<String> =
            self.nodes[1..].iter().map(|node| format!("node=127.0.0.1:{}", node.port())).collect();
        if others.is_empty() { first } else { format!("{first}?{}", others.join("&")) }
    }

    /// The same for clients that speak TLS, by the host name `localhost`; the nodes tell their address, `127.0.0.1`.
    ///
    /// # Panics
    ///
    /// If the cluster was started without [`RedisSettings::tls`].
    #[must_use]
    pub fn localhost_tls_url(&self) -> String {
        let first = self.nodes[0].localhost_tls_url().replacen("rediss://", "rediss-cluster://", 1);
        let others: Vec<String> =
            self.nodes[1..].iter().map(|node| format!("node=localhost:{}", node.peer_port())).collect();
        if others.is_empty() { first } else { format!("{first}?{}", others.join("&")) }
    }

    /// The nodes: the ones that began as masters first, in the order of their slots, then the replicas, the first
    /// master's first one at their head, then the second master's.
    #[must_use]
    pub fn nodes(&self) -> &[PrivateRedis] {
        &self.nodes
    }

    /// The node that serves a key now. Waits until one does: after its master was killed, until a replica has taken its
    /// place. Nodes that are paused are not asked.
    ///
    /// # Panics
    ///
    /// If no node serves it for a minute.
    #[must_use]
    pub fn owner(&self, key: &str) -> &PrivateRedis {
        let slot = slot(key.as_bytes());
        let mut found = None;
        self.wait_until(&format!("a node serves {key:?}"), || {
            // One that was cut off may still believe that it serves; its epoch is older.
            let believers = self.answering().filter_map(|node| Some((epoch_of_owner(node, slot)?, node)));
            found = believers.max_by_key(|(epoch, _)| *epoch).map(|(_, node)| node);
            found.is_some()
        });
        found.expect("it was waited for")
    }

    /// A node that follows the owner of a key and answers, in the order of [`RedisCluster::nodes`].
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn replica_of(&self, key: &str) -> &PrivateRedis {
        let owner = self.owner(key).peer_port().to_string();
        let follows = |node: &&PrivateRedis| {
            let role = node.command(&["ROLE"]);
            let role = role.list();
            role[0].text() == "slave" && role[2].text() == owner
        };
        self.answering().find(follows).unwrap_or_else(|| panic!("the owner of {key:?} has no replica that runs"))
    }

    /// Runs a command about one key, its first argument, on the node that serves it.
    ///
    /// # Panics
    ///
    /// As [`RedisCluster::owner`] and [`PrivateRedis::command`].
    pub fn command(&self, words: &[&str]) -> Reply {
        let key = words.get(1).unwrap_or_else(|| panic!("{words:?} names no key"));
        self.owner(key).command(words)
    }

    /// Makes a replica of the owner of a key its new owner, by agreement between the two (`CLUSTER FAILOVER`), and gives
    /// it when all nodes know.
    ///
    /// # Panics
    ///
    /// If there is no such replica, or it does not become the owner within a minute.
    pub fn failover(&self, key: &str) -> &PrivateRedis {
        let replica = self.replica_of(key);
        let mut asked = None;
        self.wait_until("the replica took over", || {
            if self.owner(key).port() == replica.port() {
                return true;
            }
            // They give it up without a word when it takes them longer, as on a busy machine.
            if asked.is_none_or(|asked: Instant| asked.elapsed() > FAILOVER) {
                let _ = replica.try_command(&["CLUSTER", "FAILOVER"]);
                asked = Some(Instant::now());
            }
            false
        });
        self.await_agreement();
        replica
    }

    /// Gives a slot to another master, with the keys in it, and returns when all nodes know: clients that ask the old
    /// owner are redirected.
    ///
    /// # Panics
    ///
    /// If the other one is no master, or a node refuses.
    pub fn move_slot_of(&self, key: &str, to: &PrivateRedis) {
        let from = self.owner(key);
        if from.port() == to.port() {
            return;
        }
        self.await_epoch();
        self.begin_to_move_slot_of(key, to);
        let slot = slot(key.as_bytes()).to_string();
        let id = |node: &PrivateRedis| node.command(&["CLUSTER", "MYID"]).text();
        self.move_keys(from, to, &slot);
        // The new owner first, then the old one. The others would learn it from their talk, which may take long.
        let is_other = |node: &&PrivateRedis| ![to.port(), from.port()].contains(&node.port());
        let is_master = |node: &&PrivateRedis| node.command(&["ROLE"]).list()[0].text() == "master";
        for node in [to, from].into_iter().chain(self.answering().filter(is_other).filter(is_master)) {
            node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
        }
        self.await_agreement();
    }

    /// Begins to give a slot to another master: until [`RedisCluster::move_slot_of`] ends it, the old owner serves the keys
    /// that it has, and sends clients that ask for others to the new one (`ASK`).
    ///
    /// # Panics
    ///
    /// If the other one is no master, or a node refuses.
    pub fn begin_to_move_slot_of(&self, key: &str, to: &PrivateRedis) {
        let from = self.owner(key);
        if from.port() == to.port() {
            return;
        }
        let slot = slot(key.as_bytes()).to_string();
        let id = |node: &PrivateRedis| node.command(&["CLUSTER", "MYID"]).text();
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// The slot that a key is in: a number from 0 to 16383.
    #[must_use]
    pub fn slot(key: &str) -> u16 {
        slot(key.as_bytes())
    }

    /// Waits until all nodes that run and are not paused agree on who serves which slots, and say that the cluster is
    /// whole.
    ///
    /// # Panics
    ///
    /// If they do not within a minute.
    pub fn await_agreement(&self) {
        self.wait_until("the nodes agree", || {
            let views: io::Result<Vec<_>> = self.answering().map(view).collect();
            views.is_ok_and(|views| !views.is_empty() && views.iter().all(|view| *view == views[0]))
        });
    }

    /// Waits until all nodes know of the last change. A new owner that does not would take a slot in an epoch that is not the
    /// newest, and word of the old owner that is still on its way would count for more, for ever.
    fn await_epoch(&self) {
        self.wait_until("the nodes know the newest epoch", || {
            let epochs: io::Result<Vec<_>> = self.answering().map(newest_epoch).collect();
            epochs.is_ok_and(|epochs| !epochs.is_empty() && epochs.iter().all(|epoch| *epoch == epochs[0]))
        });
    }

    fn answering(&self) -> impl Iterator<Item = &PrivateRedis> {
        self.nodes.iter().filter(|node| node.server().is_answering())
    }

    fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        self.nodes[0].server().wait_until(what, |_| Ok(holds()));
    }

    /// Makes a cluster of nodes that do not know each other yet.
    fn join(&self, masters: usize) {
        let (first, count) = (&self.nodes[0], self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            if at < masters {
                let (from, to) = (at * SLOTS / masters, (at + 1) * SLOTS / masters - 1);
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
            }
            if at > 0 {
                let (port, bus) = (first.peer_port().to_string(), first.bus_port().to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        for node in &self.nodes {
            node.server().wait_until("all nodes have met", |server| {
                let nodes = server.try_command(&["CLUSTER", "NODES"])?.text();
                Ok(nodes.lines().count() == count && !nodes.contains("handshake"))
            });
        }
        for (at, replica) in self.nodes[masters..].iter().enumerate() {
            let master = &self.nodes[at / (count / masters - 1)];
            replica.command(&["CLUSTER", "REPLICATE", &master.command(&["CLUSTER", "MYID"]).text()]);
        }
        for replica in &self.nodes[masters..] {
            replica.await_copy();
        }
        self.await_agreement();
        // Clients learn of replicas from any node.
        self.wait_until("all nodes know the replicas", || {
            self.nodes.iter().all(|node| {
                let slots = node.command(&["CLUSTER", "SLOTS"]);
                slots.list().iter().all(|range| range.list().len() == 2 + count / masters)
            })
        });
    }

    fn move_keys(&self, from: &PrivateRedis, to: &PrivateRedis, slot: &str) {
        loop {
            let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
            if keys.list().is_empty() {
                return;
            }
            let port = to.peer_port().to_string();
            let (user, password) = super::server::ADMIN;
            let mut words: Vec<&[u8]> =
                ["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "AUTH2", user, password, "KEYS"]
                    .map(str::as_bytes)
                    .to_vec();
            words.extend(keys.list().iter().map(Reply::bytes));
            from.command(&words);
        }
    }
}

/// Who serves which slots, in the eyes of a node that says that the cluster is whole.
fn view(node: &PrivateRedis) -> io::Result<Vec<(i64, i64, i64)>> {
    let server = node.server();
    let info = server.try_command(&["CLUSTER", "INFO"])?.text();
    if info_value(&info, "cluster_state") != Some("ok") {
        return Err(io::Error::other("the cluster is not whole"));
    }
    let slots = server.try_command(&["CLUSTER", "SLOTS"])?;
    let range = |range: &Reply| {
        let range = range.list();
        (range[0].integer(), range[1].integer(), range[2].list()[1].integer())
    };
    let mut ranges: Vec<_> = slots.list().iter().map(range).collect();
    ranges.sort_unstable();
    Ok(ranges)
}

/// The newest epoch that a node has heard of.
fn newest_epoch(node: &PrivateRedis) -> io::Result<String> {
    let info = node.server().try_command(&["CLUSTER", "INFO"])?.text();
    let epoch = info_value(&info, "cluster_current_epoch").map(str::to_owned);
    epoch.ok_or_else(|| io::Error::other("the node tells no epoch"))
}

/// The epoch in which a node serves a slot, if it believes that it does and that the cluster is whole.
fn epoch_of_owner(node: &PrivateRedis, slot: u16) -> Option<u64> {
    let mut connection: RedisConnection = node.server().connect().ok()?;
    let info = connection.ask(&["CLUSTER", "INFO"]).ok()?.text();
    if info_value(&info, "cluster_state") != Some("ok") {
        return None;
    }
    let nodes = connection.ask(&["CLUSTER", "NODES"]).ok()?.text();
    // id address flags master ping pong epoch link slot-or-range…
    let myself: Vec<&str> = nodes.lines().find(|line| line.contains("myself"))?.split_ascii_whitespace().collect();
    let serves = |range: &&str| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
    };
    let mine = myself.get(2)?.contains("master") && myself.get(8..)?.iter().any(serves);
    if mine { myself[6].parse().ok() } else { None }
}

/// The slot of a key: of what stands between its first `{` and the next `}` if that is not nothing, else of the whole.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|length| *length > 0).map(|length| &rest[..length])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8)
            .fold(crc ^ (u16::from(*byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo{bar}baz"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}"), slot(b"{bar"));
        assert_ne!(slot(b"foo{}bar"), slot(b""));
        assert_eq!(slot(b"foo"), 12_182);
    }
}
