//! Statements from tests that have no connection of their own.

use std::time::Duration;

use tokio_postgres::{Client, Error, NoTls, SimpleQueryMessage};

/// Runs one or more statements over a connection of its own and gives the rows as text. Blocks; may be called within
/// an async runtime.
///
/// # Panics
///
/// If the server can't be reached or refuses a statement.
pub fn query(url: &str, sql: &str) -> Vec<Vec<Option<String>>> {
    try_query(url, sql).unwrap_or_else(|error| panic!("{sql}: {}", describe(&error)))
}

/// The first value of the first row that a statement gives, as text. Otherwise as [`query`].
///
/// # Panics
///
/// As [`query`], and if there is no such value or it is NULL.
pub fn query_value(url: &str, sql: &str) -> String {
    let first = query(url, sql).into_iter().next().and_then(|row| row.into_iter().next());
    first.flatten().unwrap_or_else(|| panic!("{sql}: no value came back"))
}

/// As [`query`], with the error.
pub(crate) fn try_query(url: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
    blocking(async {
        let client = connect(url).await?;
        let messages = client.simple_query(sql).await?;
        Ok(messages.iter().filter_map(row).collect())
    })
}

/// Runs a future to its end on a thread of its own, since a runtime that the caller may be in must not be blocked on.
pub(crate) fn blocking<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        scope.spawn(|| runtime().block_on(future)).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.unwrap_or_else(|error| panic!("no runtime can be built: {error}"))
}

pub(crate) async fn connect(url: &str) -> Result<Client, Error> {
    let mut config: tokio_postgres::Config = url.parse()?;
    config.connect_timeout(Duration::from_secs(10));
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// An error of the driver with what the server said.
pub(crate) fn describe(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn row(message: &SimpleQueryMessage) -> Option<Vec<Option<String>>> {
    match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
        _ => None,
    }
}
