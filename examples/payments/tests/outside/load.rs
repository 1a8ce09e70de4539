//! Clients that pay and retry at two servers, while these or their database are killed, paused or told
//! to end, again and again.
//!
//! Under `./scripts/test --full` it is much longer.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use test_servers::{PrivatePostgres, PrivateRedis, RedisSentinel, RedisSettings, Settings};
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
    for place in [Place::postgres(), Place::redis()] {
        let size = Size::of(Size { keys: 150, kills: 6 }, Size { keys: 1_200, kills: 60 });
        let run = Run { place: &place, size, trouble: Trouble::Kills };
        run.play(async |_, server: &Process, _: &Clients| server.signal("-KILL").await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_told_to_end_under_load_finish_what_they_claimed_so_that_nobody_takes_over() {
    for place in [Place::postgres(), Place::redis()] {
        let size = Size::of(Size { keys: 150, kills: 6 }, Size { keys: 1_200, kills: 60 });
        let run = Run { place: &place, size, trouble: Trouble::Ends };
        run.play(async |_, server: &Process, _: &Clients| server.signal("-TERM").await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_restarted_under_load_leaves_one_charge_one_row_and_one_answer_for_each_key() {
    let size = Size::of(Size { keys: 150, kills: 3 }, Size { keys: 1_200, kills: 10 });
    let database = Arc::new(PrivatePostgres::start(Settings::new()));
    let place = Place::at(database.create_database("payments", &[]));
    let run = Run { place: &place, size, trouble: Trouble::Outages };
    run.play(async |number, _: &Process, _: &Clients| {
        let database = Arc::clone(&database);
        aside(move || match number % 3 {
            0 => database.restart(),
            _ => {
                database.kill();
                database.start_again();
            }
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_restarted_under_load_leaves_one_charge_one_row_and_one_answer_for_each_key() {
    let size = Size::of(Size { keys: 150, kills: 3 }, Size { keys: 1_200, kills: 10 });
    let redis = Arc::new(PrivateRedis::start(RedisSettings::new()));
    let run = Run { place: &Place::of_records(&redis.url()), size, trouble: Trouble::Outages };
    run.play(async |number, _: &Process, clients: &Clients| {
        let (stopped, started) = (Arc::clone(&redis), Arc::clone(&redis));
        aside(move || if number % 3 == 0 { stopped.stop() } else { stopped.kill() }).await;
        // It starts so fast that nobody would notice.
        clients.broken_off_again().await;
        aside(move || started.start_again()).await;
    })
    .await;
}

// case 069
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_paused_under_load_leaves_one_charge_one_row_and_one_answer_for_each_key() {
    let size = Size::of(Size { keys: 150, kills: 2 }, Size { keys: 1_200, kills: 10 });
    let (database, redis) = (PrivatePostgres::start(Settings::new()), PrivateRedis::start(RedisSettings::new()));
    let database = Arc::new(database);
    let place = Place::at(database.create_database("payments", &[]));
    let run = Run { place: &place, size, trouble: Trouble::Outages };
    run.play(async |_, _: &Process, clients: &Clients| {
        let (paused, resumed) = (Arc::clone(&database), Arc::clone(&database));
        aside(move || paused.pause()).await;
        clients.broken_off_again().await;
        aside(move || resumed.resume()).await;
    })
    .await;
    let place = Place::of_records(&redis.url());
    let redis = Arc::new(redis);
    let run = Run { place: &place, size, trouble: Trouble::Outages };
    run.play(async |_, _: &Process, clients: &Clients| {
        let (paused, resumed) = (Arc::clone(&redis), Arc::clone(&redis));
        aside(move || paused.pause()).await;
        clients.broken_off_again().await;
        aside(move || resumed.resume()).await;
    })
    .await;
}

// case 023
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_fails_over_under_load_leaves_one_charge_one_row_and_one_answer_for_each_key() {
    let size = Size::of(Size { keys: 150, kills: 2 }, Size { keys: 1_200, kills: 10 });
    let redis = Arc::new(RedisSentinel::start());
    let run = Run { place: &Place::of_records(&redis.url()), size, trouble: Trouble::Failovers };
    run.play(async |_, _: &Process, clients: &Clients| {
        let (before, after) = (Arc::clone(&redis), Arc::clone(&redis));
        aside(move || {
            let primary = before.primary().port();
            before.nodes().iter().filter(|node| node.port() != primary).for_each(PrivateRedis::kill);
        })
        .await;
        // What the replica does not get.
        clients.some_are_answered().await;
        aside(move || {
            let primary = after.primary();
            primary.kill();
            after.nodes().iter().filter(|node| node.port() != primary.port()).for_each(PrivateRedis::start_again);
            after.await_failover(primary);
            primary.start_again();
        })
        .await;
    })
    .await;
}

/// What a failover loses are the last moments; here it is everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_all_records_under_load_leaves_one_charge_one_row_and_one_answer_for_each_key() {
    let size = Size::of(Size { keys: 150, kills: 12 }, Size { keys: 1_200, kills: 100 });
    let redis = Arc::new(PrivateRedis::start(RedisSettings::new()));
    let run = Run { place: &Place::of_records(&redis.url()), size, trouble: Trouble::Losses };
    run.play(async |_, _: &Process, _: &Clients| {
        let redis = Arc::clone(&redis);
        aside(move || drop(redis.command(&["FLUSHALL"]))).await;
    })
    .await;
}

/// Runs what blocks.
async fn aside(work: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(work).await.unwrap();
}

struct Run<'a> {
    place: &'a Place,
    size: Size,
    trouble: Trouble,
}

/// What the clients meet.
#[derive(Clone, Copy)]
enum Trouble {
    /// Servers die, some of them since a request asked for it.
    Kills,
    /// Servers are told to end.
    Ends,
    /// The store is away for moments.
    Outages,
    /// The store is away until another one takes its place, which does not have the last moments.
    Failovers,
    /// Servers die, and records are lost, so that operations run again that can't know of it.
    Losses,
}

impl Trouble {
    /// Whether some requests ask their server to abort in the middle of them.
    fn has_crashes(self) -> bool {
        matches!(self, Self::Kills | Self::Losses)
    }

    fn may_lose(self) -> bool {
        matches!(self, Self::Failovers | Self::Losses)
    }
}

impl Run<'_> {
    /// Pays all keys, disturbs at even distances of what is answered, one server or the other where it is about one, and
    /// checks what it came to.
    async fn play(self, disturb: impl AsyncFn(usize, &Process, &Clients)) {
        let (Size { keys, kills }, trouble) = (self.size, self.trouble);
        let provider = Process::provider().await;
        let mut servers = [self.serve(&provider).await, self.serve(&provider).await];
        let urls = |servers: &[Process; 2]| servers.each_ref().map(|server| server.url.clone());
        let (address, addresses) = watch::channel(urls(&servers));
        let (answered, mut progress) = watch::channel(0);
        let clients = Clients { addresses, answered: progress.clone(), broken_off: AtomicUsize::new(0) };
        let clients = Arc::new(clients);
        let paying = tokio::spawn(pay_all(keys, trouble.has_crashes(), Arc::clone(&clients), answered));

        let (mut killed, mut started) = (0, 2);
        let disturbed = async {
            loop {
                let next = if killed == kills { keys } else { keys * (killed + 1) / (kills + 1) };
                let [one, other] = &mut servers;
                let died = tokio::select! {
                    () = one.died() => 0,
                    () = other.died() => 1,
                    ended = async { progress.wait_for(|answered| *answered >= next).await.is_err() } => {
                        if ended || killed == kills {
                            return;
                        }
                        killed += 1;
                        // At another point of what is under way each time.
                        sleep(Duration::from_millis(killed as u64 * 7 % 23)).await;
                        disturb(killed, &servers[killed % 2], &clients).await;
                        continue;
                    }
                };
                servers[died] = self.serve(&provider).await;
                started += 1;
                address.send_replace(urls(&servers));
            }
        };
        let ended = timeout(PATIENCE, disturbed).await;
        let so_far = *clients.answered.borrow();
        assert!(ended.is_ok(), "{so_far} of {keys} keys are answered, after {killed} of {kills} disturbances");
        let answers = paying.await.unwrap();
        // One that was disturbed last may be about to end.
        let servers = [self.serve(&provider).await, self.serve(&provider).await];

        assert_eq!(killed, kills);
        assert_eq!(answers.iter().collect::<HashSet<_>>().len(), keys, "each key has an answer of its own");
        let (broken_off, mut again, mut forgotten) = (clients.broken_off.load(Ordering::Relaxed), 0, 0);
        for (number, answer) in answers.iter().enumerate() {
            let server = &servers[number % 2];
            let retry = server.pay(&key(number), BODY, &[]).await;
            assert!(retry.status == 201 && retry.body == answer, "{number}: {retry:?}");
            forgotten += usize::from(!is_replay(&retry));
            let record = server.record(&key(number)).await.unwrap();
            assert_eq!(record["state"], "done", "{number}");
            again += usize::from(record["attempt"] != 1);
            let is_left = record["takeovers"] != 0;
            assert!(!(is_left && matches!(trouble, Trouble::Ends)), "{number} was left to its lease: {record}");
        }
        let [calls, charges, rows] = servers[0].totals().await;
        let shown = format!(
            "{keys} keys, {killed} disturbances, {started} server starts: {calls} provider calls, {charges} charges, {rows} \
             rows, {broken_off} requests broken off, {again} keys with a second attempt, {forgotten} without a record"
        );
        assert_eq!([charges, rows], [keys as u64; 2], "{shown}");
        assert!(trouble.may_lose() || forgotten == 0, "{shown}");
        let met = match trouble {
            Trouble::Kills => again,
            Trouble::Ends | Trouble::Outages => broken_off,
            Trouble::Failovers | Trouble::Losses => forgotten,
        };
        assert!(met > 0, "nothing was disturbed: {shown}");
        eprintln!("{shown}");
    }

    async fn serve(&self, provider: &Process) -> Process {
        self.place.serve_quietly(&["--lease", LEASE, "--provider", &provider.url]).await
    }
}

/// What the clients share.
struct Clients {
    /// Where the servers are now.
    addresses: watch::Receiver<[String; 2]>,
    /// How many keys are answered.
    answered: watch::Receiver<usize>,
    /// How many requests found their server dead or its store away.
    broken_off: AtomicUsize,
}

/// Pays each key by two clients at once, and gives the one answer of each.
async fn pay_all(keys: usize, crashes: bool, clients: Arc<Clients>, answered: watch::Sender<usize>) -> Vec<Bytes> {
    let (places, answered) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(answered));
    let mut paying = JoinSet::new();
    for number in 0..keys {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let (clients, answered) = (Arc::clone(&clients), Arc::clone(&answered));
        paying.spawn(async move {
            let (one, other) =
                tokio::join!(clients.pay(number, 0, first_fault(number, crashes)), clients.pay(number, 1, None));
            assert_eq!(one, other, "key {number} was answered in two ways");
            answered.send_modify(|answered| *answered += 1);
            drop(place);
            (number, one)
        });
    }
    let mut answers = paying.join_all().await;
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

impl Clients {
    /// Waits until a few more keys are answered.
    async fn some_are_answered(&self) {
        let mut progress = self.answered.clone();
        let enough = *progress.borrow() + AT_ONCE;
        // Or not, if the Sentinels of a busy machine have just made another node the primary by themselves.
        let _ = timeout(Duration::from_secs(10), progress.wait_for(|answered| *answered >= enough)).await;
    }

    /// Waits until another request is broken off.
    async fn broken_off_again(&self) {
        let before = self.broken_off.load(Ordering::Relaxed);
        while self.broken_off.load(Ordering::Relaxed) == before {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sends the payment until it is answered, as a client that keeps its key does: to one server first, then to the
    /// other.
    async fn pay(&self, number: usize, mut server: usize, fault: Option<(&str, &str)>) -> Bytes {
        let key = key(number);
        let mut headers = vec![("x-api-key", "tenant-7"), ("idempotency-key", &*key), ("x-delay-ms", "30")];
        headers.extend(fault);
        loop {
            let client = Client::new(&self.addresses.borrow()[server % 2]);
            match client.post("/payments", &headers, BODY, LIMIT).await {
                Ok(reply) if reply.status == 201 => return reply.body,
                Ok(reply) if ["request-in-progress", "failed-on-request"].contains(&&*code(&reply)) => {}
                Ok(reply) if reply.status != 503 => panic!("{key}: {reply:?}"),
                Ok(_) | Err(_) => {
                    self.broken_off.fetch_add(1, Ordering::Relaxed);
                }
            }
            headers.truncate(3); // once is enough
            server += 1;
            sleep(Duration::from_millis(40)).await;
        }
    }
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

fn key(number: usize) -> String {
    format!("load-{number}")
}
