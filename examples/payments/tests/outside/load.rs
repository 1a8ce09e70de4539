//! Clients that pay and retry, while servers or their database are killed again and again.
//!
//! Under `./scripts/test --full` it is much longer.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use test_servers::{PrivatePostgres, Settings, query_value};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    client::Client,
    server::{BODY, LIMIT, Place, Process, code, is_replay},
};

/// How many keys are paid at the same time, each by two clients.
const AT_ONCE: usize = 12;

/// Short, since what was killed is waited for for that long.
const LEASE: &str = "1s";

/// How long all of it may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(300);

/// How many keys are paid, and how often something is killed meanwhile.
#[derive(Clone, Copy)]
struct Size {
    keys: usize,
    kills: usize,
}

impl Size {
    fn of(small: Self, full: Self) -> Self {
        if test_servers::full(&format!("{} keys and {} kills", full.keys, full.kills)) { full } else { small }
    }
}

// case 041
#[tokio::test(flavor = "multi_thread")]
async fn servers_killed_under_load_leave_one_charge_one_row_and_one_answer_for_each_key() {
    let size = Size::of(Size { keys: 150, kills: 6 }, Size { keys: 1_200, kills: 60 });
    let place = Place::postgres();
    let run = Run { store: &place.store, size, crashes: true };
    run.play(async |_, server: &Process| server.signal("-KILL").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_restarted_under_load_leaves_one_charge_one_row_and_one_answer_for_each_key() {
    let size = Size::of(Size { keys: 150, kills: 3 }, Size { keys: 1_200, kills: 10 });
    let database = Arc::new(PrivatePostgres::start(Settings::new()));
    let run = Run { store: &database.create_database("payments", &[]), size, crashes: false };
    run.play(async |number, _: &Process| {
        let database = Arc::clone(&database);
        let restart = move || match number % 3 {
            0 => database.restart(),
            _ => {
                database.kill();
                database.start_again();
            }
        };
        tokio::task::spawn_blocking(restart).await.unwrap();
    })
    .await;
}

struct Run<'a> {
    store: &'a str,
    size: Size,
    /// Whether some requests ask the server to abort in the middle of them.
    crashes: bool,
}

impl Run<'_> {
    /// Pays all keys, disturbs at even distances of what is answered, and checks what it came to.
    async fn play(self, disturb: impl AsyncFn(usize, &Process)) {
        let Size { keys, kills } = self.size;
        let provider = Process::provider().await;
        let mut server = self.serve(&provider).await;
        let (address, addresses) = watch::channel(server.url.clone());
        let (answered, mut progress) = watch::channel(0);
        let clients = tokio::spawn(pay_all(keys, self.crashes, addresses, answered));

        let (mut killed, mut started) = (0, 1);
        let disturbed = async {
            loop {
                let next = if killed == kills { keys } else { keys * (killed + 1) / (kills + 1) };
                tokio::select! {
                    () = server.died() => {
                        server = self.serve(&provider).await;
                        started += 1;
                        address.send_replace(server.url.clone());
                    }
                    ended = async { progress.wait_for(|answered| *answered >= next).await.is_err() } => {
                        if ended || killed == kills {
                            return;
                        }
                        killed += 1;
                        // At another point of what is under way each time.
                        sleep(Duration::from_millis(killed as u64 * 7 % 23)).await;
                        disturb(killed, &server).await;
                    }
                }
            }
        };
        timeout(PATIENCE, disturbed).await.expect("every key is answered");
        let answers = clients.await.unwrap();

        assert_eq!(killed, kills);
        assert_eq!(answers.iter().collect::<HashSet<_>>().len(), keys, "each key has an answer of its own");
        for (number, answer) in answers.iter().enumerate() {
            let replay = server.pay(&key(number), BODY, &[]).await;
            assert!(is_replay(&replay) && replay.status == 201 && replay.body == answer, "{number}: {replay:?}");
        }
        let [calls, charges, rows] = server.totals().await;
        let again = query_value(self.store, "SELECT count(*) FROM idem_records WHERE number > 1");
        let shown = format!(
            "{keys} keys, {killed} kills, {started} server starts: {calls} provider calls, {charges} charges, {rows} \
             rows, {again} keys with a second attempt"
        );
        assert_eq!([charges, rows], [keys as u64; 2], "{shown}");
        assert_eq!(query_value(self.store, "SELECT count(*) FROM idem_records WHERE state = 3"), keys.to_string());
        assert_ne!(again, "0", "nothing was interrupted: {shown}");
        eprintln!("{shown}");
    }

    async fn serve(&self, provider: &Process) -> Process {
        Process::serve_quietly(self.store, &["--lease", LEASE, "--provider", &provider.url]).await
    }
}

/// Pays each key by two clients at once, and gives the one answer of each.
async fn pay_all(
    keys: usize,
    crashes: bool,
    addresses: watch::Receiver<String>,
    answered: watch::Sender<usize>,
) -> Vec<Bytes> {
    let (places, answered) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(answered));
    let mut clients = JoinSet::new();
    for number in 0..keys {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let (addresses, answered) = (addresses.clone(), Arc::clone(&answered));
        clients.spawn(async move {
            let (one, other) =
                tokio::join!(pay(number, first_fault(number, crashes), &addresses), pay(number, None, &addresses));
            assert_eq!(one, other, "key {number} was answered in two ways");
            answered.send_modify(|answered| *answered += 1);
            drop(place);
            (number, one)
        });
    }
    let mut answers = clients.join_all().await;
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// What the first request of a key asks for beyond the delay.
fn first_fault(number: usize, crashes: bool) -> Option<(&'static str, &'static str)> {
    match number % 50 {
        11 if crashes => Some(("x-crash", "after-charge")),
        29 if crashes => Some(("x-crash", "after-row")),
        37 => Some(("x-fail", "503")),
        _ => None,
    }
}

/// Sends the payment until it is answered, as a client that keeps its key does.
async fn pay(number: usize, fault: Option<(&str, &str)>, addresses: &watch::Receiver<String>) -> Bytes {
    let key = key(number);
    let mut headers = vec![("x-api-key", "tenant-7"), ("idempotency-key", &*key), ("x-delay-ms", "30")];
    headers.extend(fault);
    loop {
        let client = Client::new(&addresses.borrow().clone());
        match client.post("/payments", &headers, BODY, LIMIT).await {
            Ok(reply) if reply.status == 201 => return reply.body,
            Ok(reply) if reply.status == 503 || code(&reply) == "request-in-progress" => {}
            Ok(reply) => panic!("{key}: {reply:?}"),
            Err(_) => {} // the server was killed
        }
        headers.truncate(3); // once is enough
        sleep(Duration::from_millis(40)).await;
    }
}

fn key(number: usize) -> String {
    format!("load-{number}")
}
