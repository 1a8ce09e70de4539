//! The eight scenarios, over HTTP, against a server process that is really killed.

mod process;
mod report;

use std::{path::Path, time::Duration};

use idem::{Key, Scope};
use tempfile::TempDir;

use self::{
    process::Process,
    report::{Expected, Report},
};
use crate::{
    Failure,
    cli::Demo,
    client::{Client, Reply},
    ledger::postgres,
    model::{Payment, Totals},
    provider::ProviderTotals,
    server::RecordLine,
    storage,
};

/// Short, since the demo waits for it to lapse; and long enough that a server starts within two thirds of it.
const LEASE: &str = "3s";
const LEASE_TIME: Duration = Duration::from_secs(3);

/// How long the provider takes in scenario 5: both requests arrive within it.
const OVERLAP_MS: &str = "1500";

/// How long the provider takes in scenario 6: nobody waits for it.
const HANG_MS: &str = "3600000";

/// How long anything may take that is not supposed to.
const LIMIT: Duration = Duration::from_secs(60);

const AMOUNT: i64 = 250_000;

/// Tenants and keys of the records that are there in the end, and which attempt of each is recorded.
const RECORDS: [(u64, &str, u32); 4] = [(7, "k-1", 1), (7, "k-2", 1), (7, "k-3", 2), (8, "k-1", 1)];

/// Plays the scenarios, prints what happened and what it comes to. An error if anything differs from what must be.
pub(crate) async fn run(options: Demo) -> Result<(), Failure> {
    let place = Place::of(options).await?;
    let mut stage = Stage::set(&place).await?;
    let mut report = Report::default();
    crate::say(&format!("The eight scenarios on {}\n", place.shown))?;
    stage.play(&mut report).await?;
    stage.totals(&mut report).await?;
    stage.records(&mut report).await?;
    stage.end().await;
    report.end()
}

/// Where the records and the payments live.
struct Place {
    store: String,
    /// Where the payments are, if not with the records.
    ledger: Option<String>,
    /// What the report calls it.
    shown: String,
    is_memory: bool,
    /// Removes the temporary files in the end.
    _folder: TempDir,
}

impl Place {
    async fn of(Demo { store, ledger }: Demo) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let temporary = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
        let is_temporary = store.is_none() && ledger.is_none();
        let store = store.unwrap_or_else(|| temporary("payments.db"));
        let is_memory = store == storage::MEMORY;
        let ledger = match ledger {
            None if !storage::keeps_payments(&store) => Some(temporary("ledger.db")),
            ledger => ledger,
        };
        let shown = match &ledger {
            None if is_temporary => "a temporary SQLite file".into(),
            None => empty_database("--store", &store).await?,
            Some(ledger) if ledger == storage::MEMORY && !is_memory => {
                let problem = "the demo kills the server, and payments in memory: with it; name a file or a database";
                return Err(Failure::Usage(format!("--ledger: {problem}")));
            }
            Some(ledger) => {
                let payments = empty_database("--ledger", ledger).await?;
                format!("{} (records) and {payments} (payments)", without_records(&store).await?)
            }
        };
        Ok(Self { store, ledger, shown, is_memory, _folder: folder })
    }
}

/// What the report calls the place of the payments, in which nothing may be yet.
async fn empty_database(option: &str, url: &str) -> Result<String, Failure> {
    let place = storage::Place::of(url).map_err(|problem| Failure::Usage(format!("{option}: {problem}")))?;
    match &place {
        storage::Place::Memory => {
            Ok("memory: (records die with their process, so the server is not killed in scenario 6)".into())
        }
        storage::Place::Sqlite(path) if has_content(path) => {
            let problem = "is there already; the demo begins with an empty store";
            Err(Failure::Usage(format!("{option}: {} {problem}", path.display())))
        }
        storage::Place::Sqlite(_) => Ok(url.into()),
        storage::Place::Postgres(config) => {
            let in_use = postgres::table_in_use(config).await;
            match in_use.map_err(|error| format!("{option}: {error}"))? {
                Some(table) => Err(Failure::Usage(format!(
                    "{option}: the table {table} of this database has rows already; the demo begins with an empty store, so \
                     give it a database of its own: CREATE DATABASE payments_demo"
                ))),
                None => Ok("a PostgreSQL database".into()), // the URL may have a password
            }
        }
    }
}

/// What the report calls a store whose payments live elsewhere, and in which none of the demo's records may be yet.
async fn without_records(url: &str) -> Result<String, Failure> {
    let store = idem::open(url).map_err(|error| Failure::Usage(format!("--store: {error}")))?;
    let failed = |error: idem::StoreError| format!("--store: {error}");
    store.check().await.map_err(failed)?;
    for (tenant, key, _) in RECORDS {
        let scope = Scope::new(tenant.to_string()).map_err(|error| error.to_string())?;
        let name = Key::new(key).map_err(|error| error.to_string())?;
        if store.read(&scope, &name).await.map_err(failed)?.is_some() {
            return Err(Failure::Usage(format!(
                "--store: it has a record of tenant {tenant}, key {key} already; the demo begins without, so give it a place \
                 of its own (in Redis a prefix: ?prefix=NAME at the end of the URL)"
            )));
        }
    }
    Ok(format!("a {} store", store.backend()))
}

fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// The processes, and clients for them.
struct Stage<'a> {
    place: &'a Place,
    provider: Process,
    server: Process,
}

impl<'a> Stage<'a> {
    async fn set(place: &'a Place) -> Result<Self, String> {
        let provider = Process::start(&["provider", "--listen", "127.0.0.1:0"]).await?;
        let server = Self::start_server(place, &provider).await?;
        Ok(Self { place, provider, server })
    }

    async fn start_server(place: &Place, provider: &Process) -> Result<Process, String> {
        let mut arguments = vec!["serve", "--listen", "127.0.0.1:0", "--store", &place.store, "--lease", LEASE];
        arguments.extend(["--provider", provider.url()]);
        if let Some(ledger) = &place.ledger {
            arguments.extend(["--ledger", ledger]);
        }
        if place.is_memory {
            // What lets go of the attempt in scenario 6: its lease is not renewed for longer than this.
            arguments.extend(["--max-run", LEASE]);
        }
        Process::start(&arguments).await
    }

    async fn play(&mut self, report: &mut Report) -> Result<(), String> {
        let first = self.pay(7, "k-1", AMOUNT, &[]).await?;
        report.scenario(1, "tenant 7, key k-1, amount 250000", &first, Expected::payment("1"))?;
        self.running_totals(report, 1, [1, 1, 1]).await?;

        let retry = self.pay(7, "k-1", AMOUNT, &[]).await?;
        report.scenario(2, "retry of 1", &retry, Expected::replay_of(&first))?;
        self.running_totals(report, 2, [1, 1, 1]).await?;

        let reuse = self.pay(7, "k-1", 1, &[]).await?;
        report.scenario(3, "tenant 7, key k-1, amount 1", &reuse, Expected::problem(422, "idempotency-key-reused"))?;
        let retry = self.pay(7, "k-1", AMOUNT, &[]).await?;
        report.check(3, "a retry of 1", &retry, &Expected::replay_of(&first));
        self.running_totals(report, 3, [1, 1, 1]).await?;

        let other = self.pay(8, "k-1", AMOUNT, &[]).await?;
        report.scenario(4, "tenant 8, key k-1", &other, Expected::payment("2"))?;
        report.differ(4, "charge", charge_of(&first), charge_of(&other));
        self.running_totals(report, 4, [2, 2, 2]).await?;

        self.two_at_once(report).await?;
        self.running_totals(report, 5, [3, 3, 3]).await?;

        let what = self.abandon(report).await?;
        report.no_answer(6, "tenant 7, key k-3, not answered", what)?;
        let early = self.pay(7, "k-3", AMOUNT, &[]).await?;
        report.scenario(7, "retry of 6 at once", &early, Expected::in_progress())?;
        self.running_totals(report, 7, [4, 4, 3]).await?;

        let late = self.after_the_lapse().await?;
        report.scenario(8, "retry of 6 after its lease lapsed", &late, Expected::payment("4"))?;
        self.running_totals(report, 8, [5, 4, 4]).await
    }

    /// Scenario 5.
    async fn two_at_once(&self, report: &mut Report) -> Result<(), String> {
        let slowly = [("x-delay-ms", OVERLAP_MS)];
        let (one, other) = tokio::join!(self.pay(7, "k-2", AMOUNT, &slowly), self.pay(7, "k-2", AMOUNT, &slowly));
        let (one, other) = (one?, other?);
        let (paid, refused) = if one.status == 201 { (one, other) } else { (other, one) };
        report.both(5, "two at once: tenant 7, key k-2", &paid, &refused)?;
        report.check(5, "one of them", &paid, &Expected::payment("3"));
        report.check(5, "the other", &refused, &Expected::in_progress());
        Ok(())
    }

    /// Scenario 6: the server is killed, or where that would lose the records the attempt abandoned, after the provider
    /// charged.
    async fn abandon(&mut self, report: &mut Report) -> Result<&'static str, String> {
        let client = self.client();
        let request = tokio::spawn(async move { pay(&client, 7, "k-3", AMOUNT, &[("x-delay-ms", HANG_MS)]).await });
        self.provider_called(4).await?;
        if self.place.is_memory {
            // The client hangs up on a handler that hangs on the provider, whose lease is renewed no longer than max_run.
            request.abort();
            let _ = request.await; // so that the connection is closed
            return Ok("abandoned, not killed, after the provider charged");
        }
        self.server.kill().await?;
        if let Ok(Ok(reply)) = request.await {
            report.mismatch(6, &format!("the killed server answered {}: {}", reply.status, reply.text()));
        }
        self.server = Self::start_server(self.place, &self.provider).await?;
        Ok("the server was killed (SIGKILL) after the provider charged, and started again")
    }

    /// Scenario 8: waits for the lease, and for as long after it as the server says.
    async fn after_the_lapse(&self) -> Result<Reply, String> {
        let lapsed = async {
            tokio::time::sleep(LEASE_TIME).await;
            loop {
                let reply = self.pay(7, "k-3", AMOUNT, &[]).await?;
                let pause = reply.header("retry-after").and_then(|seconds| seconds.parse().ok());
                match pause {
                    Some(seconds) if reply.status == 409 => tokio::time::sleep(Duration::from_secs(seconds)).await,
                    _ => return Ok(reply),
                }
            }
        };
        let limit = || format!("the lease of scenario 6 had not lapsed after {LIMIT:?}");
        tokio::time::timeout(LIMIT, lapsed).await.map_err(|_| limit())?
    }

    async fn provider_called(&self, calls: u64) -> Result<(), String> {
        let client = Client::new(self.provider.url());
        let called = async {
            loop {
                let totals: ProviderTotals = json(&client.get("/totals", &[], LIMIT).await?)?;
                if totals.calls >= calls {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LIMIT, called).await.map_err(|_| format!("the provider was not called {calls} times"))?
    }

    async fn pay(
        &self,
        tenant: u64,
        key: &str,
        amount: i64,
        faults: &[(&'static str, &'static str)],
    ) -> Result<Reply, String> {
        pay(&self.client(), tenant, key, amount, faults).await
    }

    /// Provider calls, distinct charges and payment rows after a scenario.
    async fn running_totals(&self, report: &mut Report, number: u8, expected: [u64; 3]) -> Result<(), String> {
        let totals = self.fetch_totals().await?;
        let seen = [totals.provider_calls, totals.distinct_charges, totals.payment_rows];
        if seen != expected {
            report.mismatch(number, &format!("calls, charges and rows are {seen:?} and must be {expected:?}"));
        }
        Ok(())
    }

    async fn totals(&self, report: &mut Report) -> Result<(), String> {
        let totals = self.fetch_totals().await?;
        crate::say("")?;
        for (name, seen, expected) in [
            ("provider calls", totals.provider_calls, 5),
            ("distinct charges", totals.distinct_charges, 4),
            ("payment rows", totals.payment_rows, 4),
        ] {
            crate::say(&format!("{name} = {seen}"))?;
            report.total(name, seen, expected);
        }
        Ok(())
    }

    async fn records(&self, report: &mut Report) -> Result<(), String> {
        crate::say("\nrecords\n  tenant  key  state        status  attempt  takeovers")?;
        for (tenant, key, attempt) in RECORDS {
            let reply = self.client().get(&format!("/debug/records/{tenant}/{key}"), &[], LIMIT).await?;
            let record: Option<RecordLine> = if reply.status == 200 { Some(json(&reply)?) } else { None };
            let shown = record.as_ref().map_or("absent".into(), ToString::to_string);
            crate::say(&format!("  {tenant:<6}  {key:<3}  {shown}"))?;
            report.record(tenant, key, record.as_ref(), attempt);
        }
        Ok(())
    }

    async fn fetch_totals(&self) -> Result<Totals, String> {
        json(&self.client().get("/debug/totals", &[], LIMIT).await?)
    }

    fn client(&self) -> Client {
        Client::new(self.server.url())
    }

    /// Ends the processes. They end with the stage in any case; this waits for it, so that their files can be removed.
    async fn end(mut self) {
        let _ = self.server.kill().await;
        let _ = self.provider.kill().await;
    }
}

async fn pay(
    client: &Client,
    tenant: u64,
    key: &str,
    amount: i64,
    faults: &[(&'static str, &'static str)],
) -> Result<Reply, String> {
    let (api_key, key) = (format!("tenant-{tenant}"), format!("\"{key}\""));
    let mut headers = vec![("x-api-key", api_key.as_str()), ("idempotency-key", &key)];
    headers.extend(faults);
    let body = format!(r#"{{"amountMinor":{amount},"currency":"VND"}}"#);
    client.post("/payments", &headers, body, LIMIT).await
}

fn charge_of(reply: &Reply) -> Option<String> {
    json(reply).ok().map(|payment: Payment| payment.charge_id)
}

fn json<T: serde::de::DeserializeOwned>(reply: &Reply) -> Result<T, String> {
    serde_json::from_slice(&reply.body).map_err(|error| format!("{} {}: {error}", reply.status, reply.text()))
}
