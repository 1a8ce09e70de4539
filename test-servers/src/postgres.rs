//! The PostgreSQL server that all tests of a process share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::Client;

use crate::private::{self, PrivatePostgres, Settings, identifier};
use crate::{port, sql, url};

/// The environment variable that names a server to use instead of a private one.
const VARIABLE: &str = "IDEM_TEST_POSTGRES_URL";
/// What the names of test databases begin with.
const PREFIX: &str = "idem_test_";

/// The PostgreSQL server of this process, started on first use. If `IDEM_TEST_POSTGRES_URL` is set, that server is used
/// and none is started: its user must be able to create databases.
///
/// # Panics
///
/// If there is no server and none can be started; the message says what to install.
pub fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::new)
}

/// A PostgreSQL server with databases of this process. Tests may run in it at the same time and must not stop it.
#[derive(Debug)]
pub struct Postgres {
    /// Keeps the private server alive; nothing if the server is not ours.
    server: Option<PrivatePostgres>,
    admin_url: String,
    /// `idem_test_<process id>_<random>`, and the first part of the name of every other database.
    database: String,
    databases: AtomicU32,
}

impl Postgres {
    /// The address of this process's own database, `postgres://user[:password]@host:port/idem_test_…`.
    #[must_use]
    pub fn url(&self) -> String {
        url::with_database(&self.admin_url, &self.database)
    }

    /// Creates another database, empty and used by nobody else, and gives its address. Each option is set for all its
    /// connections, as by `ALTER DATABASE … SET option = 'value'`, with the value taken as one word.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn create_database(&self, options: &[(&str, &str)]) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed) + 1;
        private::create_database(&self.admin_url, &format!("{}_{number}", self.database), options)
    }

    /// The address that this server's databases are created from. On a private server it is the superuser's, on
    /// another one it is what `IDEM_TEST_POSTGRES_URL` says.
    #[must_use]
    pub fn superuser_url(&self) -> &str {
        &self.admin_url
    }

    /// Whether the server belongs to this process alone.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.server.is_some()
    }

    /// The process id of a private server.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.server.as_ref()?.process_id()
    }

    /// The private server's folder.
    #[must_use]
    pub fn folder(&self) -> Option<&std::path::Path> {
        self.server.as_ref().map(PrivatePostgres::folder)
    }

    fn new() -> Self {
        let database = format!("{PREFIX}{}_{:08x}", std::process::id(), port::random() as u32);
        let (server, admin_url) = match std::env::var(VARIABLE) {
            Ok(url) => {
                adopt(&url, &database);
                (None, url)
            }
            Err(std::env::VarError::NotPresent) => {
                let server = PrivatePostgres::start(Settings::new());
                let url = server.url();
                (Some(server), url)
            }
            Err(error) => panic!("{VARIABLE} can't be read: {error}"),
        };
        private::create_database(&admin_url, &database, &[]);
        Self { server, admin_url, database, databases: AtomicU32::new(0) }
    }
}

/// Readies a server that is not ours: says that this process lives, and drops databases of processes that do not.
///
/// A live process holds an advisory lock under the name of its database, through a connection that ends with it. A
/// database alone does not tell: between two tests nobody is connected to it.
fn adopt(url: &str, database: &str) {
    // Refuses addresses of another form before anything is done with them.
    let _ = url::database(url);
    hold_lock(url.to_owned(), database.to_owned());
    let names = format!("SELECT datname FROM pg_database WHERE datname LIKE '{}%'", PREFIX.replace('_', r"\_"));
    for row in sql::query(url, &names) {
        let [Some(name)] = row.as_slice() else { continue };
        // A name of another form is not ours to drop.
        let Some(owner) = owner(name) else { continue };
        sql::blocking(async {
            let client = sql::connect(url).await?;
            if lock(&client, owner).await? {
                // Refused while somebody is connected, and then it stays.
                let _ = client.batch_execute(&format!("DROP DATABASE IF EXISTS {}", identifier(name))).await;
            }
            Ok(())
        })
        .unwrap_or_else(|error: tokio_postgres::Error| panic!("{VARIABLE}: {}", sql::describe(&error)));
    }
}

/// The name of the first database of the process that made this one.
fn owner(name: &str) -> Option<&str> {
    let mut parts = name.strip_prefix(PREFIX)?.split('_');
    let (process, random, number) = (parts.next()?, parts.next()?, parts.next());
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let right = digits(process)
        && random.len() == 8
        && random.bytes().all(|byte| byte.is_ascii_hexdigit())
        && number.is_none_or(digits)
        && parts.next().is_none();
    right.then(|| &name[..PREFIX.len() + process.len() + 1 + random.len()])
}

/// Takes the lock of a process until this one ends.
fn hold_lock(url: String, database: String) {
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        sql::runtime().block_on(async {
            let locked = async {
                let client = sql::connect(&url).await?;
                let locked = lock(&client, &database).await?;
                Ok::<_, tokio_postgres::Error>((client, locked))
            };
            let (client, answer) = match locked.await {
                Ok((client, true)) => (Some(client), Ok(())),
                Ok((_, false)) => (None, Err("the lock of this process is held by another".to_owned())),
                Err(error) => (None, Err(sql::describe(&error))),
            };
            let _ = done.send(answer);
            if client.is_some() {
                std::future::pending::<()>().await;
            }
        });
    });
    let answer = outcome.recv().unwrap_or_else(|_| Err("its thread ended".to_owned()));
    answer.unwrap_or_else(|error| panic!("the server that {VARIABLE} names can't be used: {error}"));
}

async fn lock(client: &Client, database: &str) -> Result<bool, tokio_postgres::Error> {
    let row = client.query_one("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", &[&database]).await?;
    Ok(row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_databases_of_test_processes_have_an_owner() {
        assert_eq!(owner("idem_test_12_0123abcd"), Some("idem_test_12_0123abcd"));
        assert_eq!(owner("idem_test_12_0123abcd_7"), Some("idem_test_12_0123abcd"));
        for other in
            ["idem_test_", "idem_test_12", "idem_test_mine_0123abcd", "idem_test_12_0123abcd_x", "idem_test_1_2"]
        {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
