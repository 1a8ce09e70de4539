//! Every statement that reads or writes records.
//!
//! They restate what [`machine`](idem_core::machine) decides only where a write must be one statement: the first claim
//! (three times: here for groups and for SERIALIZABLE, and in the function that [`schema`](crate::schema) makes for claims
//! that travel alone; a test compares the rows that they write), and the writes of an owner. What a statement did not write is judged by the machine itself, from the row as it was
//! found; and a claim or resolve that writes over a row that it found swaps the row that was judged for the one that the
//! machine decided on.
//!
//! A record expires at `expiry`, and is looked at by the sweep at `sweep_at`, which has an index. An expiry that moves back
//! takes it along; one that moves on, as every completion's does, leaves it, so that no index has to be written: the
//! sweep files the row anew when it comes to it.
//!
//! Time is the server's. `$now` is null, unless a test has set the clock by hand.

use std::time::Duration;

use tokio_postgres::types::Type;

use crate::schema::Names;

/// A statement and the types of its parameters.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) types: &'static [Type],
}

/// The statements for one table.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) claim: Statement,
    pub(crate) claim_inserting_first: Statement,
    pub(crate) claim_group: Statement,
    pub(crate) claim_in: Statement,
    pub(crate) swap: Statement,
    pub(crate) swap_in: Statement,
    pub(crate) complete: Statement,
    pub(crate) complete_in: Statement,
    pub(crate) release: Statement,
    pub(crate) forget: Statement,
    pub(crate) hold: Statement,
    pub(crate) renew: Statement,
    pub(crate) checkpoint: Statement,
    pub(crate) read: Statement,
    pub(crate) look: Statement,
    pub(crate) lock: Statement,
    pub(crate) lock_in: Statement,
    pub(crate) wait: Statement,
    pub(crate) sweep: Statement,
    pub(crate) lapsed: Statement,
    pub(crate) purge: Statement,
}

/// The columns of a record, in the order in which [`records`](crate::records) reads them.
const COLUMNS: &str = "format, state, token, number, origin, repeat, lapses, fingerprint, lease_end, claimed, settled, \
    expiry, on_lapse, started, checkpoint_names, checkpoint_values, response";

/// How many rows a page of [`Statements::lapsed`] looks at.
pub(crate) const LAPSED_PAGE: i64 = 5_000;

/// Bounds how long a caller's transaction that holds a key may lie idle, where nothing does: until it ends, however its
/// host has died, nobody else gets the key.
const IDLE_BOUND: &str = "CASE WHEN current_setting('idle_in_transaction_session_timeout') = '0' \
    THEN set_config('idle_in_transaction_session_timeout', '5min', true) END";

/// How long a claim waits for a row that somebody has locked who does not take the key's lock, in milliseconds. The
/// claims behind it wait too.
const CLAIM_PATIENCE: u128 = 200;

/// The clock, in whole milliseconds.
fn now(parameter: &str) -> String {
    instant(parameter, "clock_timestamp()")
}

/// The instant at which the statement began, to which what it sees belongs. What it read is judged by this one: rows
/// that others write meanwhile are not seen, so a later instant would judge them too late.
fn seen_at(parameter: &str) -> String {
    instant(parameter, "statement_timestamp()")
}

fn instant(parameter: &str, clock: &str) -> String {
    format!("coalesce({parameter}::int8, floor(date_part('epoch', {clock}) * 1000)::int8)")
}

/// `from` and a duration later, at the end of time at most.
fn after(from: &str, duration: &str) -> String {
    format!("{from} + least({duration}, 9223372036854775807 - {from})")
}

impl Statements {
    /// The statements of a store whose operations may take as long as `timeout`.
    pub(crate) fn new(names: &Names, timeout: Duration) -> Self {
        let lock_timeout = (timeout / 8).as_millis().max(1);
        // Within the statement, so that it needs no state of the session.
        let bound = |millis| format!("bound AS MATERIALIZED (SELECT set_config('lock_timeout', '{millis}ms', true))");
        let sql = Sql {
            records: names.records(),
            seed: names.seed("key"),
            channel: names.channel(),
            bound: bound(lock_timeout),
            bound_of_claims: bound(lock_timeout.min(CLAIM_PATIENCE)),
            // A decision does not stand for longer: until it is written, the lease that it gives goes by.
            fresh: (timeout / 2).clamp(Duration::from_secs(1), Duration::from_secs(5)).as_millis(),
            claim_function: names.claim_function(),
            claim_patience: lock_timeout.min(CLAIM_PATIENCE),
        };
        Self {
            claim: sql.claim_alone(),
            claim_inserting_first: sql.claim(true),
            claim_group: sql.claim_group(),
            claim_in: sql.claim(false),
            swap: sql.swap(true),
            swap_in: sql.swap(false),
            complete: sql.complete(false),
            complete_in: sql.complete(true),
            release: sql.end("state = 1, settled = c.now"),
            forget: sql.end(
                "state = 1, settled = c.now, fingerprint = CASE WHEN NOT r.repeat AND r.checkpoint_names = '{}' \
                 THEN NULL ELSE r.fingerprint END",
            ),
            hold: sql.hold(),
            renew: sql.renew(),
            checkpoint: sql.checkpoint(),
            read: sql.read(),
            look: sql.look(),
            lock: sql.lock(),
            lock_in: sql.lock_in(),
            wait: sql.wait(),
            sweep: sql.sweep(),
            lapsed: sql.lapsed(),
            purge: sql.purge(),
        }
    }
}

struct Sql {
    records: String,
    seed: i64,
    channel: String,
    bound: String,
    bound_of_claims: String,
    fresh: u128,
    claim_function: String,
    claim_patience: u128,
}

/// An owner's write: scope, key, token and number.
const OWNER: [Type; 4] = [Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8];

/// A claim: scope, key, token, fingerprint, on-lapse rule, lease, retention, now.
const CLAIM: &[Type] =
    &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::BYTEA, Type::INT2, Type::INT8, Type::INT8, Type::INT8];

/// The row is the owner's, in progress and live: the fence of every write.
const FENCE: &str = "r.scope = $1 AND r.key = $2 AND r.token = $3 AND r.number = $4 AND r.state = 0 \
    AND r.format = 1 AND r.expiry > c.now";

impl Sql {
    /// The advisory lock of a key. A transaction of a caller's that finishes a record takes it exclusively, for as long
    /// as it is open; statements that must not wait for such a transaction ask for it shared, and are refused.
    fn lock_of(&self, scope: &str, key: &str) -> String {
        format!("hashtextextended({key}, hashtextextended({scope}, {}))", self.seed)
    }

    /// Says that the attempt is over, if someone listens: to whom, as [`bell`](crate::wait::bell) computes it too.
    fn notify(&self, waited: &str) -> String {
        let digest = r"encode(sha256(convert_to(r.scope || chr(10) || r.key, 'UTF8')), 'hex')";
        format!("(CASE WHEN {waited} THEN pg_notify('{}', left({digest}, 16))::text END) IS NULL", self.channel)
    }

    /// A claim that travels alone: looks, and calls the function that inserts only where nothing is. A replay costs little
    /// more than the look: what inserts is a statement of the function's, and setting that up costs more than
    /// the look itself, whether it inserts or not. The instant is null if a rival's insert is not visible yet.
    ///
    /// Looking first is not for SERIALIZABLE, where it makes claims of other keys fail: there it is [`Sql::claim`].
    fn claim_alone(&self) -> Statement {
        let Self { records, claim_function, claim_patience, .. } = self;
        let text = format!(
            "SELECT x.format IS NULL AS written,
                CASE WHEN x.format IS NULL THEN {claim_function}($1, $2, $3, $4, $5, $6, $7, $8, '{claim_patience}ms')
                    ELSE {seen_at} END AS at,
                {columns}
            FROM (SELECT 1) o LEFT JOIN {records} x ON x.scope = $1 AND x.key = $2",
            seen_at = seen_at("$8"),
            columns = COLUMNS.split(", ").map(|column| format!("x.{}", column.trim())).collect::<Vec<_>>().join(", "),
        );
        Statement { text, types: CLAIM }
    }

    /// The first claim: inserts, and reads only what was in the way. Nothing comes back if a rival's insert is not
    /// visible yet.
    ///
    /// `$1` scope, `$2` key, `$3` token, `$4` fingerprint, `$5` on-lapse rule, `$6` lease, `$7` retention, `$8` now.
    fn claim(&self, bounded: bool) -> Statement {
        let Self { records, bound_of_claims: bound, .. } = self;
        let (bound, and_bound) = if bounded { (format!("{bound},"), ", bound") } else { (String::new(), "") };
        let (lock, now, seen_at) = (self.lock_of("$1", "$2"), now("$8"), seen_at("$8"));
        let (lease_end, kept) = (after("c.now", "$6::int8"), after("c.now", "$7::int8"));
        let text = format!(
            "WITH {bound} w AS (
                INSERT INTO {records} (scope, key, format, state, token, number, origin, repeat, lapses, fingerprint,
                    lease_end, claimed, expiry, on_lapse, started, sweep_at)
                SELECT $1, $2, 1, 0, $3, 1, 0, false, 0, $4,
                    {lease_end}, c.now, greatest({lease_end}, {kept}), $5, false, greatest({lease_end}, {kept})
                FROM (SELECT {now} AS now OFFSET 0) c {and_bound}
                WHERE pg_try_advisory_xact_lock_shared({lock})
                ON CONFLICT (scope, key) DO NOTHING
                RETURNING claimed)
            SELECT true AS written, w.claimed AS at, {nothing} FROM w
            UNION ALL
            SELECT false, {seen_at}, x.* FROM (
                SELECT {COLUMNS} FROM {records} WHERE scope = $1 AND key = $2 LIMIT 1) x
            WHERE NOT EXISTS (SELECT FROM w)",
            nothing = nothing(),
        );
        Statement { text, types: CLAIM }
    }

    /// The same for many at once. Ordered, so that no two groups can wait for each other. The answers are told apart by
    /// their token.
    ///
    /// `$1` to `$7` are arrays of what [`Sql::claim`] takes one of.
    fn claim_group(&self) -> Statement {
        let Self { records, bound_of_claims: bound, .. } = self;
        let (lock, now, seen_at) = (self.lock_of("i.scope", "i.key"), now("$8"), seen_at("$8"));
        let (lease_end, kept) = (after("c.now", "i.lease"), after("c.now", "i.kept"));
        let text = format!(
            "WITH {bound},
            i AS MATERIALIZED (
                SELECT scope, key, token, fingerprint, on_lapse, lease, kept
                FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[], $5::int2[], $6::int8[], $7::int8[])
                    AS u(scope, key, token, fingerprint, on_lapse, lease, kept)),
            w AS (
                INSERT INTO {records} AS r (scope, key, format, state, token, number, origin, repeat, lapses,
                    fingerprint, lease_end, claimed, expiry, on_lapse, started, sweep_at)
                SELECT i.scope, i.key, 1, 0, i.token, 1, 0, false, 0, i.fingerprint,
                    {lease_end}, c.now, greatest({lease_end}, {kept}), i.on_lapse, false, greatest({lease_end}, {kept})
                FROM bound, i CROSS JOIN LATERAL (SELECT {now} AS now OFFSET 0) c
                WHERE pg_try_advisory_xact_lock_shared({lock})
                ORDER BY i.scope COLLATE \"C\", i.key COLLATE \"C\"
                ON CONFLICT (scope, key) DO NOTHING
                RETURNING r.token, r.claimed)
            SELECT true AS written, w.claimed AS at, {nothing}, w.token AS of FROM w
            UNION ALL
            SELECT false, {seen_at}, x.*, i.token FROM i CROSS JOIN LATERAL (
                SELECT {COLUMNS} FROM {records} r WHERE r.scope = i.scope AND r.key = i.key LIMIT 1) x
            WHERE NOT EXISTS (SELECT FROM w WHERE w.token = i.token)",
            nothing = nothing(),
        );
        const TYPES: &[Type] = &[
            Type::TEXT_ARRAY,
            Type::TEXT_ARRAY,
            Type::BYTEA_ARRAY,
            Type::BYTEA_ARRAY,
            Type::INT2_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8,
        ];
        Statement { text, types: TYPES }
    }

    /// Writes what the machine decided on over the row that it judged, unless that has changed or is locked: its owner
    /// is finishing it.
    ///
    /// `$1` scope, `$2` key; of the row that was judged `$3` token, `$4` number, `$5` state, `$6` lease end, `$7` expiry;
    /// `$8` when it was judged; of the row that it becomes `$9` token, `$10` number, `$11` origin, `$12` repeat,
    /// `$13` lapses, `$14` fingerprint, `$15` lease end, `$16` claimed, `$17` expiry, `$18` on-lapse rule, `$19` started,
    /// `$20` whether it keeps the checkpoints; `$21` now; `$22` how many checkpoints the row had that was judged, `$23`
    /// whether it was started: a renewal within the millisecond of its claim changes nothing else. What is swapped in is in
    /// progress.
    fn swap(&self, bounded: bool) -> Statement {
        let Self { records, bound, fresh, .. } = self;
        let (bound, and_bound) = if bounded { (format!("{bound},"), ", bound") } else { (String::new(), "") };
        let (now, notify) = (now("$21"), self.notify("judged.waited"));
        let text = format!(
            "WITH {bound} judged AS MATERIALIZED (
                SELECT r.waited FROM {records} r {and_bound}
                WHERE r.scope = $1 AND r.key = $2 AND r.token = $3 AND r.number = $4 AND r.state = $5
                    AND r.lease_end = $6 AND r.expiry = $7 AND cardinality(r.checkpoint_names) = $22
                    AND r.started = $23 AND r.format = 1 AND {now} - $8 <= {fresh}
                FOR NO KEY UPDATE OF r SKIP LOCKED)
            UPDATE {records} r SET
                state = 0, token = $9, number = $10, origin = $11, repeat = $12, lapses = $13, fingerprint = $14,
                lease_end = $15, claimed = $16, settled = NULL, expiry = $17, on_lapse = $18, started = $19,
                checkpoint_names = CASE WHEN $20 THEN r.checkpoint_names ELSE '{{}}' END,
                checkpoint_values = CASE WHEN $20 THEN r.checkpoint_values ELSE '{{}}' END,
                response = NULL, sweep_at = least(r.sweep_at, $17), waited = false
            FROM judged WHERE r.scope = $1 AND r.key = $2
            RETURNING {notify}",
        );
        const TYPES: &[Type] = &[
            Type::TEXT,
            Type::TEXT,
            Type::BYTEA,
            Type::INT8,
            Type::INT2,
            Type::INT8,
            Type::INT8,
            Type::INT8,
            Type::BYTEA,
            Type::INT8,
            Type::INT2,
            Type::BOOL,
            Type::INT8,
            Type::BYTEA,
            Type::INT8,
            Type::INT8,
            Type::INT8,
            Type::INT2,
            Type::BOOL,
            Type::BOOL,
            Type::INT8,
            Type::INT4,
            Type::BOOL,
        ];
        Statement { text, types: TYPES }
    }

    /// Records the response. In a caller's transaction the key's lock comes first, so that nobody waits for the row
    /// until that transaction ends.
    ///
    /// `$1` scope, `$2` key, `$3` token, `$4` number, `$5` response, `$6` retention, `$7` now.
    fn complete(&self, in_transaction: bool) -> Statement {
        let Self { records, bound, .. } = self;
        let (now, notify) = (now("$7"), self.notify("r.waited"));
        let first = match in_transaction {
            true => format!(
                "bound AS MATERIALIZED (SELECT pg_advisory_xact_lock({}), {IDLE_BOUND})",
                self.lock_of("$1", "$2")
            ),
            false => bound.clone(),
        };
        let kept = after("c.now", "$6::int8");
        let text = format!(
            "WITH {first}, c AS MATERIALIZED (SELECT {now} AS now FROM bound)
            UPDATE {records} r SET
                state = 3, settled = c.now, expiry = greatest({kept}, r.lease_end), response = $5,
                sweep_at = least(r.sweep_at, greatest({kept}, r.lease_end)),
                checkpoint_names = '{{}}', checkpoint_values = '{{}}'
            FROM c WHERE {FENCE}
            RETURNING {notify} AS is_told, current_setting('synchronous_commit') = 'off' AS is_lossy,
                r.xmin::text <> (txid_current() % 4294967296)::text AS is_within_savepoint",
        );
        const TYPES: &[Type] = &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8, Type::BYTEA, Type::INT8, Type::INT8];
        Statement { text, types: TYPES }
    }

    /// Ends the attempt without a response.
    ///
    /// `$1` scope, `$2` key, `$3` token, `$4` number, `$5` now.
    fn end(&self, set: &str) -> Statement {
        let Self { records, bound, .. } = self;
        let (now, notify) = (now("$5"), self.notify("r.waited"));
        let text = format!(
            "WITH {bound}, c AS MATERIALIZED (SELECT {now} AS now FROM bound)
            UPDATE {records} r SET {set}
            FROM c WHERE {FENCE}
            RETURNING {notify}",
        );
        const TYPES: &[Type] = &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8, Type::INT8];
        Statement { text, types: TYPES }
    }

    /// Leaves the outcome unknown. `$5` is now, `$6` the retention of what is held.
    fn hold(&self) -> Statement {
        let kept = after("c.now", "$6::int8");
        let Statement { text, .. } =
            self.end(&format!("state = 2, settled = c.now, expiry = {kept}, sweep_at = least(r.sweep_at, {kept})"));
        const TYPES: &[Type] = &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8, Type::INT8, Type::INT8];
        Statement { text, types: TYPES }
    }

    /// Moves the lease, unless the row is locked.
    ///
    /// `$1` scope, `$2` key, `$3` token, `$4` number, `$5` lease, `$6` now.
    fn renew(&self) -> Statement {
        let Self { records, .. } = self;
        let (now, lease_end) = (now("$6"), after("c.now", "$5::int8"));
        let text = format!(
            "WITH c AS MATERIALIZED (SELECT {now} AS now),
            own AS MATERIALIZED (SELECT FROM {records} r, c WHERE {FENCE} FOR NO KEY UPDATE OF r SKIP LOCKED)
            UPDATE {records} r SET
                lease_end = {lease_end}, expiry = greatest(r.expiry, {lease_end}), started = true
            FROM own, c WHERE r.scope = $1 AND r.key = $2
            RETURNING true",
        );
        const TYPES: &[Type] = &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8, Type::INT8, Type::INT8];
        Statement { text, types: TYPES }
    }

    /// Keeps a named value, if there is none of the name and room for it.
    ///
    /// `$1` scope, `$2` key, `$3` token, `$4` number, `$5` name, `$6` value, `$7` the most bytes, `$8` now.
    fn checkpoint(&self) -> Statement {
        let Self { records, bound, .. } = self;
        let now = now("$8");
        let text = format!(
            "WITH {bound}, c AS MATERIALIZED (SELECT {now} AS now FROM bound)
            UPDATE {records} r SET
                checkpoint_names = r.checkpoint_names || $5, checkpoint_values = r.checkpoint_values || $6
            FROM c WHERE {FENCE}
                AND $5 <> ALL (r.checkpoint_names)
                AND octet_length($5) + octet_length($6)
                    + coalesce((SELECT sum(octet_length(n)) FROM unnest(r.checkpoint_names) n), 0)
                    + coalesce((SELECT sum(octet_length(v)) FROM unnest(r.checkpoint_values) v), 0) <= $7
            RETURNING true",
        );
        const TYPES: &[Type] =
            &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8, Type::TEXT, Type::BYTEA, Type::INT8, Type::INT8];
        Statement { text, types: TYPES }
    }

    /// The record, and when it was seen. `$1` scope, `$2` key, `$3` now.
    fn read(&self) -> Statement {
        let text = format!(
            "SELECT true, {seen_at}, {COLUMNS} FROM {records} WHERE scope = $1 AND key = $2",
            seen_at = seen_at("$3"),
            records = self.records
        );
        Statement { text, types: &[Type::TEXT, Type::TEXT, Type::INT8] }
    }

    /// The same, and first whether no transaction of a caller's is finishing it.
    fn look(&self) -> Statement {
        let text = format!(
            "SELECT pg_try_advisory_xact_lock_shared({lock}), {seen_at}, {COLUMNS} FROM {records}
            WHERE scope = $1 AND key = $2",
            lock = self.lock_of("$1", "$2"),
            seen_at = seen_at("$3"),
            records = self.records
        );
        Statement { text, types: &[Type::TEXT, Type::TEXT, Type::INT8] }
    }

    /// Takes the key's lock for a caller's transaction, if nobody has it. `$1` scope, `$2` key.
    fn lock(&self) -> Statement {
        let text = format!("SELECT pg_try_advisory_xact_lock({}), {IDLE_BOUND}", self.lock_of("$1", "$2"));
        Statement { text, types: &[Type::TEXT, Type::TEXT] }
    }

    /// Takes the key's lock and the row for a caller's transaction.
    ///
    /// `$1` scope, `$2` key, `$3` token, `$4` number, `$5` now.
    fn lock_in(&self) -> Statement {
        let text = format!(
            "WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock({lock}), {IDLE_BOUND}),
            c AS MATERIALIZED (SELECT {now} AS now FROM locked)
            SELECT true FROM {records} r, c WHERE {FENCE} FOR NO KEY UPDATE OF r",
            lock = self.lock_of("$1", "$2"),
            now = now("$5"),
            records = self.records
        );
        const TYPES: &[Type] = &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8, Type::INT8];
        Statement { text, types: TYPES }
    }

    /// Asks for a notification at the end of the attempt, once for any number of waits, and says whether there will be
    /// one: not while the row is locked. `$1` scope, `$2` key, `$3` token, `$4` number.
    fn wait(&self) -> Statement {
        let Self { records, .. } = self;
        let seen = "r.scope = $1 AND r.key = $2 AND r.token = $3 AND r.number = $4 AND r.state = 0";
        let text = format!(
            "WITH seen AS MATERIALIZED (
                SELECT FROM {records} r WHERE {seen} AND NOT r.waited FOR NO KEY UPDATE OF r SKIP LOCKED),
            asked AS (
                UPDATE {records} r SET waited = true FROM seen WHERE r.scope = $1 AND r.key = $2 RETURNING true)
            SELECT EXISTS (SELECT FROM asked) OR EXISTS (SELECT FROM {records} r WHERE {seen} AND r.waited)",
        );
        const TYPES: &[Type] = &OWNER;
        Statement { text, types: TYPES }
    }

    /// Looks at rows whose time to be looked at has come: removes those that have expired, and files the others anew.
    ///
    /// `$1` how many at most, `$2` now.
    fn sweep(&self) -> Statement {
        let Self { records, .. } = self;
        let text = format!(
            "WITH c AS MATERIALIZED (SELECT {now} AS now),
            due AS MATERIALIZED (
                SELECT r.ctid AS at, r.expiry FROM {records} r
                WHERE r.sweep_at <= (SELECT now FROM c) ORDER BY r.sweep_at LIMIT $1
                FOR UPDATE OF r SKIP LOCKED),
            gone AS (
                DELETE FROM {records} r USING due, c WHERE r.ctid = due.at AND due.expiry <= c.now RETURNING true),
            filed AS (
                UPDATE {records} r SET sweep_at = due.expiry FROM due, c WHERE r.ctid = due.at AND due.expiry > c.now
                RETURNING true)
            SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM filed)",
            now = now("$2"),
        );
        Statement { text, types: &[Type::INT8, Type::INT8] }
    }

    /// The records that wait for someone on the page behind `$1` scope and `$2` key (empty for the first page); and, if
    /// other pages may follow, a last row that says where this one ended. `$3` how many at most, `$4` now.
    fn lapsed(&self) -> Statement {
        let Self { records, .. } = self;
        let text = format!(
            "WITH c AS MATERIALIZED (SELECT {seen_at} AS now),
            page AS MATERIALIZED (
                SELECT scope, key, expiry > c.now AND (state = 2 OR (state = 0 AND lease_end <= c.now)) AS waits
                FROM {records}, c WHERE (scope, key) > ($1, $2) ORDER BY scope, key LIMIT {LAPSED_PAGE}),
            waiting AS MATERIALIZED (SELECT scope, key FROM page WHERE waits ORDER BY scope, key LIMIT $3)
            (SELECT true, c.now, {columns}, r.scope, r.key
                FROM waiting w JOIN {records} r ON r.scope = w.scope AND r.key = w.key, c
                ORDER BY r.scope, r.key)
            UNION ALL
            (SELECT false, c.now, {nothing}, page.scope, page.key FROM page, c
                WHERE (SELECT count(*) FROM page) = {LAPSED_PAGE} ORDER BY page.scope DESC, page.key DESC LIMIT 1)",
            seen_at = seen_at("$4"),
            columns = COLUMNS.split(", ").map(|column| format!("r.{}", column.trim())).collect::<Vec<_>>().join(", "),
            nothing = nothing(),
        );
        Statement { text, types: &[Type::TEXT, Type::TEXT, Type::INT8, Type::INT8] }
    }

    /// Removes records of a scope. `$1` scope, `$2` how many at most.
    fn purge(&self) -> Statement {
        let Self { records, bound, .. } = self;
        let notify = self.notify("r.waited");
        let text = format!(
            "WITH {bound},
            gone AS MATERIALIZED (
                SELECT r.key FROM {records} r, bound WHERE r.scope = $1 ORDER BY r.key LIMIT $2 FOR UPDATE OF r)
            DELETE FROM {records} r USING gone WHERE r.scope = $1 AND r.key = gone.key RETURNING {notify}",
        );
        Statement { text, types: &[Type::TEXT, Type::INT8] }
    }
}

/// As many nulls as a record has columns, of their types.
fn nothing() -> &'static str {
    "NULL::int2, NULL::int2, NULL::bytea, NULL::int8, NULL::int2, NULL::bool, NULL::int8, NULL::bytea, NULL::int8, \
     NULL::int8, NULL::int8, NULL::int8, NULL::int2, NULL::bool, NULL::text[], NULL::bytea[], NULL::bytea"
}

#[cfg(test)]
mod tests;
