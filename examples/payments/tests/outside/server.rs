//! Processes of the program, and requests to them.

use std::{path::Path, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
};

use crate::client::{Client, Reply};

/// How long anything may take before a test gives up: never what a test is about.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) const BODY: &str = r#"{"amountMinor":250000,"currency":"VND"}"#;

/// A `serve` or `provider` process. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
    _output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        Self::start_logging("error", arguments).await
    }

    async fn start_logging(level: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.args(arguments).env("RUST_LOG", level);
        let mut child = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        tokio::time::timeout(LIMIT, output.read_line(&mut line)).await.expect("it listens").unwrap();
        let url = line.trim_end().strip_prefix("listening on ").expect("it says where it listens").to_owned();
        Self { child, url, _output: output }
    }

    /// A server on the store, with further options.
    pub(crate) async fn serve(store: &str, options: &[&str]) -> Self {
        Self::start(&[&["serve", "--listen", "127.0.0.1:0", "--store", store], options].concat()).await
    }

    pub(crate) async fn provider() -> Self {
        Self::start(&["provider", "--listen", "127.0.0.1:0"]).await
    }

    /// Kills it and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) async fn signal(&self, name: &str) {
        let id = self.child.id().unwrap().to_string();
        // The shell's own kill: a small system may have no program of this name.
        let kill = ["-c", "kill \"$0\" \"$1\"", name, &id];
        assert!(Command::new("sh").args(kill).status().await.unwrap().success());
    }

    /// Its exit code, once it has ended by itself.
    pub(crate) async fn ended(mut self) -> Option<i32> {
        tokio::time::timeout(LIMIT, self.child.wait()).await.expect("it ends").unwrap().code()
    }

    /// Ends once it has ended, for whatever reason.
    pub(crate) async fn died(&mut self) {
        self.child.wait().await.unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url)
    }

    /// `POST /payments` for tenant 7.
    pub(crate) async fn pay(&self, key: &str, body: &str, more: &[(&str, &str)]) -> Reply {
        self.try_pay(key, body, more).await.unwrap()
    }

    pub(crate) async fn try_pay(&self, key: &str, body: &str, more: &[(&str, &str)]) -> Result<Reply, String> {
        let headers = [&[("x-api-key", "tenant-7"), ("idempotency-key", key)], more].concat();
        self.client().post("/payments", &headers, body.to_owned(), LIMIT).await
    }

    /// `POST /payments` for another tenant.
    pub(crate) async fn pay_as(&self, tenant: &str, key: &str, body: &str) -> Reply {
        let headers = [("x-api-key", tenant), ("idempotency-key", key)];
        self.client().post("/payments", &headers, body.to_owned(), LIMIT).await.unwrap()
    }

    /// `GET /payments`.
    pub(crate) async fn list(&self, tenant: &str) -> Value {
        json(&self.client().get("/payments", &[("x-api-key", tenant)], LIMIT).await.unwrap())
    }

    /// Pays again until nobody else is at it.
    pub(crate) async fn pay_until_answered(&self, key: &str, body: &str) -> Reply {
        let answered = async {
            loop {
                let reply = self.pay(key, body, &[]).await;
                if code(&reply) != "request-in-progress" {
                    return reply;
                }
                let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
                assert!((1..=5).contains(&seconds), "Retry-After is {seconds}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(LIMIT, answered).await.expect("the lease ends")
    }

    /// Provider calls, distinct charges and payment rows.
    pub(crate) async fn totals(&self) -> [u64; 3] {
        let totals = json(&self.client().get("/debug/totals", &[], LIMIT).await.unwrap());
        ["providerCalls", "distinctCharges", "paymentRows"].map(|name| totals[name].as_u64().unwrap())
    }

    /// Waits until the provider was called this often.
    pub(crate) async fn provider_called(&self, calls: u64) {
        let called = async {
            while self.totals().await[0] < calls {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, called).await.expect("the provider is called");
    }

    /// The state of tenant 7's record, if there is one.
    pub(crate) async fn record(&self, key: &str) -> Option<Value> {
        let reply = self.client().get(&format!("/debug/records/7/{key}"), &[], LIMIT).await.unwrap();
        (reply.status == 200).then(|| json(&reply))
    }
}

/// A store that nobody else uses, and a folder.
pub(crate) struct Place {
    folder: TempDir,
    pub(crate) store: String,
    /// Where payments live, if not with the records.
    ledger: Option<String>,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = url(folder.path(), "payments.db");
        Self { folder, store, ledger: None }
    }

    pub(crate) fn postgres() -> Self {
        Self::at(test_servers::postgres().create_database(&[]))
    }

    /// A store that the test made.
    pub(crate) fn at(store: String) -> Self {
        Self { store, ..Self::sqlite() }
    }

    /// Records in the Redis that tests share, payments in a SQLite file.
    pub(crate) fn redis() -> Self {
        let redis = test_servers::redis();
        Self::of_records(&format!("{}?prefix={}", redis.url(), redis.prefix()))
    }

    /// A store that keeps records only, and a SQLite file for the payments.
    pub(crate) fn of_records(store: &str) -> Self {
        let place = Self::at(store.into());
        let ledger = place.beside("ledger.db");
        place.with_ledger(ledger)
    }

    pub(crate) fn with_ledger(self, url: String) -> Self {
        Self { ledger: Some(url), ..self }
    }

    /// A place on each store that keeps payments as well, and that several servers share.
    pub(crate) fn sql() -> [Self; 2] {
        [Self::sqlite(), Self::postgres()]
    }

    /// A place on each store that outlives its servers, and that several servers share.
    pub(crate) fn lasting() -> [Self; 3] {
        [Self::sqlite(), Self::postgres(), Self::redis()]
    }

    /// A place on each store.
    pub(crate) fn each() -> [Self; 4] {
        [Self::at("memory:".into()), Self::sqlite(), Self::postgres(), Self::redis()]
    }

    /// A server here, with further options.
    pub(crate) async fn serve(&self, options: &[&str]) -> Process {
        Process::serve(&self.store, &self.options(options)).await
    }

    /// The same where errors are the point, and nobody wants to read them.
    pub(crate) async fn serve_quietly(&self, options: &[&str]) -> Process {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--store", &self.store];
        Process::start_logging("off", &[&serve, &*self.options(options)].concat()).await
    }

    fn options<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let ledger = self.ledger.as_deref().map(|url| ["--ledger", url]);
        ledger.into_iter().flatten().chain(more.iter().copied()).collect()
    }

    /// The URL of a file beside the store.
    pub(crate) fn beside(&self, name: &str) -> String {
        url(self.folder.path(), name)
    }
}

fn url(folder: &Path, name: &str) -> String {
    format!("sqlite:{}", folder.join(name).display())
}

pub(crate) fn json(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.body).unwrap_or_else(|error| panic!("{error}: {reply:?}"))
}

/// The code of a problem; empty where there is none.
pub(crate) fn code(reply: &Reply) -> String {
    let problem: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    problem["code"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn is_replay(reply: &Reply) -> bool {
    reply.header("idempotent-replayed") == Some("true")
}

pub(crate) fn assert_replays(reply: &Reply, first: &Reply) {
    assert!(is_replay(reply), "{reply:?}");
    assert_eq!((reply.status, &reply.body), (first.status, &first.body));
    assert_eq!(reply.header("content-type"), first.header("content-type"));
}
