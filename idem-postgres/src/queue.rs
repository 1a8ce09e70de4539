//! Claims that arrive while one is in flight travel together.
//!
//! They have a connection of their own. Whoever comes while nobody is there runs its claim itself, on that connection,
//! without a task or a pool in between. Whoever comes meanwhile waits in line; when the first is done, or is dropped,
//! a task takes the line over and sends up to [`GROUP`] claims in a statement until it is empty.
//!
//! Whoever is at the head may stop without being dropped: its future is kept and not polled, or its runtime stands still.
//! So those who wait look now and then whether the line moves, and if not one of them relieves the head.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use deadpool_postgres::ClientWrapper;
use futures_util::future::try_join;
use idem_core::{Claim, StoreError, StoreErrorKind, Timestamp, Token};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout_at},
};
use tokio_postgres::{Row, Statement as Prepared, error::SqlState, types::ToSql};

use crate::{
    clock::Clock,
    connections::{Asked, Connections, Failure, Mode, Tries, typed},
    error::{postgres_error, store_error},
    records::{ClaimColumns, token_of},
    sql::{Statement, Statements},
};

/// The most claims in a statement. Each takes a slot of the server's lock table while it runs.
const GROUP: usize = 64;

const OPERATION: &str = "claim";

/// The line, and the connection at its head.
pub(crate) struct Queue(Arc<Inner>);

struct Inner {
    connections: Connections,
    statements: Arc<Statements>,
    clock: Clock,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    /// Who stands at its head, and looks after those who wait.
    head: Option<u64>,
    /// How many stood there so far.
    heads: u64,
    /// When something was last sent.
    moved: Option<Instant>,
    waiting: VecDeque<Waiting>,
    connection: Option<Arc<Connection>>,
}

impl Line {
    /// Puts somebody else at the head.
    fn new_head(&mut self) -> u64 {
        self.heads += 1;
        self.head = Some(self.heads);
        self.moved = Some(Instant::now());
        self.heads
    }
}

/// Where a claim stands.
enum Place {
    /// At the head of the line, under this number.
    Head(u64),
    /// Behind it. The answer will come here.
    Waiting(oneshot::Receiver<Result<Given, Refused>>),
}

struct Waiting {
    claim: Claim,
    deadline: Instant,
    answer: oneshot::Sender<Result<Given, Refused>>,
}

/// What came of waiting.
enum Waited {
    Answered(Result<Given, Refused>),
    /// The line stood still, and this one is its head now.
    Relieves(u64),
    /// The runtime at the head has ended, and with it the line. The claim is in no line any more.
    Alone,
    InVain,
}

/// What a claim's statement gave.
#[derive(Debug)]
pub(crate) enum Given {
    /// What it wrote or found.
    Row(Row),
    /// Nothing: a rival's insert can't be seen yet, because it came after the statement began or because its transaction
    /// is still open.
    Unseen,
    /// Nothing: somebody who does not take the key's lock holds the row.
    Locked,
}

impl Given {
    fn of(row: Option<Row>) -> Self {
        row.map_or(Self::Unseen, Self::Row)
    }
}

/// A failure, for each claim of a group.
#[derive(Clone, Debug)]
struct Refused {
    kind: StoreErrorKind,
    message: String,
}

struct Connection {
    client: ClientWrapper,
    /// The statements for one and for many; none where they have no name.
    prepared: Option<(Prepared, Prepared)>,
    /// Whether its transactions are SERIALIZABLE.
    inserts_first: bool,
    asked: Mutex<Asked>,
}

impl Connection {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_usable(&self, timeout: Duration) -> bool {
        !self.client.is_closed() && !self.asked().is_overdue(timeout)
    }
}

impl Queue {
    pub(crate) fn new(connections: Connections, statements: Arc<Statements>, clock: Clock) -> Self {
        Self(Arc::new(Inner { connections, statements, clock, line: Mutex::default() }))
    }

    /// Asks for a claim.
    pub(crate) async fn ask(&self, claim: &Claim) -> Result<Given, StoreError> {
        let deadline = self.0.connections.deadline();
        loop {
            let mut answer = match self.0.stand_in_line(claim, deadline) {
                Place::Head(number) => return self.lead(number, claim).await,
                Place::Waiting(answer) => answer,
            };
            match self.wait_in_line(&mut answer, deadline).await {
                Waited::Answered(Ok(given)) => return Ok(given),
                Waited::Answered(Err(Refused { kind, message })) => return Err(store_error(kind, OPERATION, message)),
                Waited::Relieves(number) => {
                    // It no longer waits. If it is on its way all the same, it is the same claim.
                    drop(answer);
                    return self.lead(number, claim).await;
                }
                Waited::Alone => {}
                Waited::InVain => return Err(Tries::new(OPERATION, self.0.connections.timeout).error(Failure::Late)),
            }
        }
    }

    async fn wait_in_line(&self, answer: &mut oneshot::Receiver<Result<Given, Refused>>, deadline: Instant) -> Waited {
        loop {
            let now = Instant::now();
            if now >= deadline {
                return Waited::InVain;
            }
            match timeout_at(deadline.min(now + self.0.patience()), &mut *answer).await {
                Ok(Ok(answer)) => return Waited::Answered(answer),
                Ok(Err(_)) => return Waited::Alone,
                Err(_) if Instant::now() >= deadline => return Waited::InVain,
                Err(_) => {
                    if let Some(number) = self.0.relieve() {
                        return Waited::Relieves(number);
                    }
                }
            }
        }
    }

    /// Runs a claim at the head of the line, and hands that on.
    async fn lead(&self, number: u64, claim: &Claim) -> Result<Given, StoreError> {
        let _head = Head { inner: Arc::clone(&self.0), number, runtime: Handle::try_current().ok() };
        self.0.one(claim).await
    }
}

impl Inner {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stand_in_line(&self, claim: &Claim, deadline: Instant) -> Place {
        let mut line = self.line();
        if line.head.is_none() {
            return Place::Head(line.new_head());
        }
        let (answer, answered) = oneshot::channel();
        line.waiting.push_back(Waiting { claim: claim.clone(), deadline, answer });
        Place::Waiting(answered)
    }

    /// How long the line may stand still before the head is relieved.
    fn patience(&self) -> Duration {
        self.connections.timeout / 8
    }

    /// Takes the head's place, if the line stands still.
    fn relieve(&self) -> Option<u64> {
        let mut line = self.line();
        let is_still = line.moved.is_none_or(|moved| moved.elapsed() >= self.patience());
        is_still.then(|| line.new_head())
    }

    /// The connection at the head of the line. Made by whoever stands there, so by one at a time, or nearly so.
    async fn connection(&self, tries: &Tries) -> Result<Arc<Connection>, StoreError> {
        let known = self.line().connection.clone();
        if let Some(connection) = known.filter(|known| known.is_usable(self.connections.timeout)) {
            return Ok(connection);
        }
        let client = self.connections.fresh(OPERATION, tries.deadline).await?;
        let isolation = client.query_typed_one("SELECT current_setting('transaction_isolation') = 'serializable'", &[]);
        let inserts_first = match timeout_at(tries.deadline, isolation).await {
            Ok(row) => row.and_then(|row| row.try_get(0)).map_err(|error| postgres_error(OPERATION, error))?,
            Err(_) => return Err(tries.error(Failure::Late)),
        };
        let prepared = match self.connections.mode {
            Mode::Unnamed => None,
            Mode::Prepared => {
                let (claim, claim_group) = (self.alone(inserts_first), &self.statements.claim_group);
                let one = client.prepare_typed(&claim.text, claim.types);
                let many = client.prepare_typed(&claim_group.text, claim_group.types);
                match timeout_at(tries.deadline, try_join(one, many)).await {
                    Ok(both) => Some(both.map_err(|error| postgres_error(OPERATION, error))?),
                    Err(_) => return Err(tries.error(Failure::Late)),
                }
            }
        };
        let connection = Arc::new(Connection { client, prepared, inserts_first, asked: Mutex::default() });
        self.line().connection = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn alone(&self, inserts_first: bool) -> &Statement {
        if inserts_first { &self.statements.claim_inserting_first } else { &self.statements.claim }
    }

    /// Sends one claim by itself.
    async fn one(&self, claim: &Claim) -> Result<Given, StoreError> {
        let mut tries = Tries::new(OPERATION, self.connections.timeout);
        loop {
            let connection = self.connection(&tries).await?;
            match self.try_one(&connection, claim, &tries).await {
                Ok(row) => return Ok(Given::of(row.filter(says_something))),
                Err(failure) if is_locked(&failure) => return Ok(Given::Locked),
                Err(failure) => self.after(failure, &connection, &mut tries).await?,
            }
        }
    }

    async fn try_one(&self, connection: &Connection, claim: &Claim, tries: &Tries) -> Result<Option<Row>, Failure> {
        let ClaimColumns { scope, key, token, fingerprint, on_lapse, lease, kept } = ClaimColumns::of(claim);
        let now = self.clock.set_to().map(Timestamp::as_millis);
        let values: [&(dyn ToSql + Sync); 8] =
            [&scope, &key, &&token[..], &fingerprint, &on_lapse, &lease, &kept, &now];
        let sent = async {
            match &connection.prepared {
                Some((one, _)) => connection.client.query_opt(one, &values).await,
                None => {
                    let statement = self.alone(connection.inserts_first);
                    connection.client.query_typed_opt(&statement.text, &typed(statement, &values)).await
                }
            }
        };
        in_time(connection, tries, sent).await
    }

    /// Sends claims together. Gives a row for each token that has one.
    async fn many(&self, claims: &[&Claim]) -> Result<Vec<Row>, StoreError> {
        let mut tries = Tries::new(OPERATION, self.connections.timeout);
        loop {
            let connection = self.connection(&tries).await?;
            match self.try_many(&connection, claims, &tries).await {
                Ok(rows) => return Ok(rows),
                Err(failure) if is_locked(&failure) => return Err(tries.error(failure)),
                Err(failure) => self.after(failure, &connection, &mut tries).await?,
            }
        }
    }

    async fn try_many(&self, connection: &Connection, claims: &[&Claim], tries: &Tries) -> Result<Vec<Row>, Failure> {
        let columns: Vec<ClaimColumns<'_>> = claims.iter().map(|claim| ClaimColumns::of(claim)).collect();
        let scopes: Vec<&str> = columns.iter().map(|columns| columns.scope).collect();
        let keys: Vec<&str> = columns.iter().map(|columns| columns.key).collect();
        let tokens: Vec<&[u8]> = columns.iter().map(|columns| &columns.token[..]).collect();
        let fingerprints: Vec<&[u8]> = columns.iter().map(|columns| columns.fingerprint).collect();
        let on_lapse: Vec<i16> = columns.iter().map(|columns| columns.on_lapse).collect();
        let leases: Vec<i64> = columns.iter().map(|columns| columns.lease).collect();
        let kept: Vec<i64> = columns.iter().map(|columns| columns.kept).collect();
        let now = self.clock.set_to().map(Timestamp::as_millis);
        let values: [&(dyn ToSql + Sync); 8] =
            [&scopes, &keys, &tokens, &fingerprints, &on_lapse, &leases, &kept, &now];
        let sent = async {
            match &connection.prepared {
                Some((_, many)) => connection.client.query(many, &values).await,
                None => {
                    let statement = &self.statements.claim_group;
                    connection.client.query_typed(&statement.text, &typed(statement, &values)).await
                }
            }
        };
        in_time(connection, tries, sent).await
    }

    /// Says whether to try again, after letting go of a connection that is broken.
    async fn after(&self, failure: Failure, connection: &Connection, tries: &mut Tries) -> Result<(), StoreError> {
        if failure.is_of_the_connection(&connection.asked(), self.connections.timeout) {
            let mut line = self.line();
            line.connection.take_if(|known| std::ptr::eq(&**known, connection));
        }
        tries.after(failure).await
    }

    /// Takes the next claims out of the line: no two of one token, by which their answers are told apart. Claims of one
    /// key do travel together, or a key in demand would hold up all others: at most one of them writes, and those that
    /// can't see it yet are asked again. None if another is at the head now.
    fn next_group(&self, head: u64) -> Option<Vec<Waiting>> {
        let mut line = self.line();
        if line.head != Some(head) {
            return None;
        }
        line.moved = Some(Instant::now());
        let (mut group, mut later) = (Vec::new(), VecDeque::new());
        let mut tokens = HashSet::<Token>::new();
        let now = Instant::now();
        while group.len() < GROUP
            && let Some(next) = line.waiting.pop_front()
        {
            // If its caller has left, it must lock no key.
            if next.answer.is_closed() || next.deadline <= now {
                continue;
            }
            if tokens.insert(next.claim.token()) {
                group.push(next);
            } else {
                later.push_back(next);
            }
        }
        later.append(&mut line.waiting);
        line.waiting = later;
        if group.is_empty() {
            // Under one lock, so that nobody is left standing.
            line.head = None;
            return None;
        }
        Some(group)
    }

    /// Sends groups until nobody waits, or another is at the head.
    async fn attend(self: Arc<Self>, head: Head) {
        loop {
            // Lets those who are about to claim get into this group.
            yield_now().await;
            let Some(group) = self.next_group(head.number) else { return };
            if group.len() > 1 {
                self.answer(group).await;
                continue;
            }
            let Some(Waiting { claim, answer, .. }) = group.into_iter().next() else { return };
            let _ = answer.send(self.one(&claim).await.map_err(Refused::of)); // its caller may have left
        }
    }

    async fn answer(&self, group: Vec<Waiting>) {
        let claims: Vec<&Claim> = group.iter().map(|waiting| &waiting.claim).collect();
        let rows = self.many(&claims).await.and_then(|rows| {
            rows.into_iter().map(|row| Ok((token_of(&row)?, row))).collect::<Result<HashMap<_, _>, StoreError>>()
        });
        match rows {
            Ok(mut rows) => {
                for Waiting { claim, answer, .. } in group {
                    let _ = answer.send(Ok(Given::of(rows.remove(&claim.token()))));
                }
            }
            // The server does not answer, or not in time.
            Err(error) if self.line().connection.is_none() => {
                let refused = Refused::of(error);
                for Waiting { answer, .. } in group {
                    let _ = answer.send(Err(refused.clone()));
                }
            }
            // One of them may be all that is wrong. By itself each gets an answer of its own.
            Err(_) => {
                for Waiting { claim, answer, .. } in group {
                    if !answer.is_closed() {
                        let _ = answer.send(self.one(&claim).await.map_err(Refused::of));
                    }
                }
            }
        }
    }
}

async fn in_time<T>(
    connection: &Connection,
    tries: &Tries,
    sent: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failure> {
    connection.asked().asks();
    match timeout_at(tries.limit(), sent).await {
        Ok(answer) => {
            connection.asked().is_answered();
            answer.map_err(Failure::Of)
        }
        Err(_) => Err(Failure::Late),
    }
}

/// Whether a claim that travelled alone wrote or saw a row: only then there is an instant.
fn says_something(row: &Row) -> bool {
    row.try_get::<_, Option<i64>>(1).is_ok_and(|at| at.is_some())
}

fn is_locked(failure: &Failure) -> bool {
    matches!(failure, Failure::Of(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
}

impl Refused {
    fn of(error: StoreError) -> Self {
        Self { kind: error.kind(), message: format!("in a group of claims: {}", error.message()) }
    }
}

/// Whoever stands at the head of the line. Going away, for whatever reason, it hands the line on.
struct Head {
    inner: Arc<Inner>,
    number: u64,
    /// Where the line is handed to a task; none in that task itself, which only ends early with its runtime.
    runtime: Option<Handle>,
}

impl Drop for Head {
    fn drop(&mut self) {
        let mut line = self.inner.line();
        // Relieved, or done.
        if line.head != Some(self.number) {
            return;
        }
        if let Some(runtime) = self.runtime.take().filter(|_| !line.waiting.is_empty()) {
            drop(line);
            let head = Head { inner: Arc::clone(&self.inner), number: self.number, runtime: None };
            runtime.spawn(Arc::clone(&self.inner).attend(head));
            return;
        }
        // Nobody waits, or a runtime is going down: those who wait learn it from the end of their channels and begin
        // another line.
        line.head = None;
        let left = std::mem::take(&mut line.waiting);
        drop(line);
        drop(left);
    }
}
