use idem_core::{Claim, Fingerprint, Key, ManualClock, Scope, Store, Timestamp, Token, machine};
use test_servers::postgres;
use tokio_postgres::{Client, NoTls};

use super::*;
use crate::{PostgresStore, records::Swap};

/// A table with many records, most of which stay and some of which have expired, that was never analysed.
async fn filled(table: &str) -> (PostgresStore, Client) {
    let store = PostgresStore::builder(&postgres().url()).table(table).connect().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&postgres().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    // The plans of a server that has not come round to it.
    client.batch_execute(&format!("ALTER TABLE {table} SET (autovacuum_enabled = off)")).await.unwrap();
    let fill = format!(
        "INSERT INTO {table} (scope, key, format, state, token, number, origin, repeat, lapses, fingerprint, lease_end,
            claimed, settled, expiry, on_lapse, started, response, sweep_at)
        SELECT 'tenant-' || i % 100, 'k-' || i, 1, 3, '', 1, 0, false, 0, '', 0, 0, 0, e, 0, false, '', e
        FROM (SELECT i, CASE WHEN i % 100 = 0 THEN 1 ELSE 9000000000000000 END AS e
            FROM generate_series(1, 50000) i) r"
    );
    client.batch_execute(&fill).await.unwrap();
    (store, client)
}

/// How the server runs a statement with these values, once planned for them and once for any.
async fn plans(client: &Client, statement: &Statement, values: &str) -> Vec<String> {
    let mut plans = Vec::new();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        // An array's name is that of its elements behind an underscore.
        let types = statement.types.iter().map(|of| match of.name().strip_prefix('_') {
            Some(element) => format!("{element}[]"),
            None => of.name().to_owned(),
        });
        let types = types.collect::<Vec<_>>().join(", ");
        let script = format!(
            "SET plan_cache_mode = {mode}; DEALLOCATE ALL; PREPARE s ({types}) AS {}; EXPLAIN EXECUTE s ({values})",
            statement.text
        );
        let lines = client.simple_query(&script).await.unwrap_or_else(|error| panic!("{script}: {error:?}"));
        let lines = lines.iter().filter_map(|line| match line {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        plans.push(lines.collect::<Vec<_>>().join("\n"));
    }
    plans
}

#[tokio::test]
async fn the_sweep_finds_what_is_due_by_its_index() {
    let (store, client) = filled("swept_by_index").await;
    for plan in plans(&client, &store.inner.statements.sweep, "1000, NULL").await {
        assert!(plan.contains("Index Scan using swept_by_index_sweep"), "{plan}");
        assert!(!plan.contains("Seq Scan"), "{plan}");
    }
}

#[tokio::test]
async fn no_statement_about_one_record_reads_the_whole_table() {
    let (store, client) = filled("one_by_index").await;
    let statements = &store.inner.statements;
    let owner = r"'tenant-1', 'k-1', '\x00', 1";
    for (statement, values) in [
        (&statements.claim, r"'tenant-1', 'k-1', '\x00', '\x00', 0, 1, 1, NULL".to_owned()),
        (&statements.complete, format!(r"{owner}, '\x00', 1, NULL")),
        (&statements.complete_in, format!(r"{owner}, '\x00', 1, NULL")),
        (&statements.release, format!("{owner}, NULL")),
        (&statements.forget, format!("{owner}, NULL")),
        (&statements.hold, format!("{owner}, NULL, 1")),
        (&statements.renew, format!("{owner}, 1, NULL")),
        (&statements.checkpoint, format!(r"{owner}, 'name', '\x00', 65536, NULL")),
        (&statements.read, "'tenant-1', 'k-1', NULL".to_owned()),
        (&statements.look, "'tenant-1', 'k-1', NULL".to_owned()),
        (&statements.lock_in, format!("{owner}, NULL")),
        (&statements.wait, owner.to_owned()),
        (
            &statements.swap,
            format!(r"{owner}, 0, 1, 1, 1, '\x00', 1, 0, true, 0, NULL, 1, 1, 1, 0, false, true, NULL, 0, false"),
        ),
        (&statements.purge, "'tenant-1', 100".to_owned()),
        (&statements.lapsed, "'tenant-1', 'k-1', 10, NULL".to_owned()),
    ] {
        for plan in plans(&client, statement, &values).await {
            assert!(plan.contains("Index"), "{}\n{plan}", statement.text);
            assert!(!plan.contains("Seq Scan on one_by_index"), "{}\n{plan}", statement.text);
        }
    }
}

#[tokio::test]
async fn a_group_of_claims_finds_each_of_its_keys_by_the_index() {
    let (store, client) = filled("many_by_index").await;
    let of = |value: &str| format!("ARRAY[{}]", vec![value; 64].join(", "));
    let keys: Vec<_> = (0..64).map(|i| format!("'k-{i}'")).collect();
    let values = format!(
        "{}, ARRAY[{}], {}, {}, {}, {}, {}, NULL",
        of("'tenant-1'"),
        keys.join(", "),
        of(r"'\x00'::bytea"),
        of(r"'\x00'::bytea"),
        of("0::int2"),
        of("1::int8"),
        of("1::int8"),
    );
    let statement = &store.inner.statements.claim_group;
    for plan in plans(&client, statement, &values).await {
        assert!(plan.contains("Index Scan using many_by_index_pkey"), "{plan}");
        assert!(!plan.contains("Seq Scan on many_by_index"), "{plan}");
    }
}

#[tokio::test]
async fn a_swap_writes_over_the_row_that_was_judged_and_over_no_other_and_not_late() {
    let clock = ManualClock::starting_at(Timestamp::from_millis(1_000_000));
    let builder = PostgresStore::builder(&postgres().url()).table("swapped").clock(clock.clone());
    let store = builder.connect().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&postgres().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let (scope, key) = (Scope::new("s").unwrap(), Key::new("k").unwrap());
    let fingerprint = Fingerprint::builder().part("body", "b").build().unwrap();
    let of = |token| Claim::new(scope.clone(), key.clone(), Token::from_bytes([token; 16]), fingerprint.clone());
    store.claim(&of(1)).await.unwrap();
    let seen = store.read(&scope, &key).await.unwrap().unwrap().record;
    clock.advance(std::time::Duration::from_secs(3600));
    let now = clock.now();
    let next = machine::claim(Some(&seen), &of(2), now).unwrap().write.unwrap();
    let swapped = async |judged_at: Timestamp| {
        let swap = Swap::of(&scope, &key, (&seen, judged_at), &next, Some(now.as_millis()));
        store.rows("claim", &store.inner.statements.swap, &swap.values()).await.unwrap().len()
    };
    for change in [
        "token = '\\x00'",
        "number = number + 1",
        "state = 1",
        "lease_end = lease_end + 1",
        "expiry = expiry + 1",
        "format = 2",
        "started = true",
        "checkpoint_names = ARRAY['charge'], checkpoint_values = ARRAY['ch_1'::bytea]",
    ] {
        client.batch_execute("CREATE TEMPORARY TABLE kept AS SELECT * FROM public.swapped").await.unwrap();
        client.batch_execute(&format!("UPDATE public.swapped SET {change}")).await.unwrap();
        assert_eq!(swapped(now).await, 0, "{change}");
        let restore = "DELETE FROM public.swapped; INSERT INTO public.swapped SELECT * FROM kept; DROP TABLE kept";
        client.batch_execute(restore).await.unwrap();
    }
    assert_eq!(swapped(Timestamp::from_millis(now.as_millis() - 2_501)).await, 0, "judged too long ago");
    assert_eq!(swapped(now).await, 1);
}
