//! One round: tasks on a few keys at once, and what they were answered.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use idem_core::{Answer, Fenced, Owner, Store, StoreError};
use tokio::{
    sync::{Barrier, Notify},
    task::JoinHandle,
};

use super::{
    choose::{Action, Board, Chooser, Lengths, Start},
    clock::{Clock, Reading},
    history::{Call, History},
    recording::{Counter, Recorder},
};
use crate::{concurrency::value, faulty::drop_after, rng::Rng, world::World};

/// How many keys a round is about, each with tasks and a history of its own.
const KEYS: usize = 3;
/// The names of the tasks on one key; a round has all of them, or one or two less.
const TASKS: [&str; 5] = ["A", "B", "C", "D", "E"];
/// How long a patient task waits for another one on a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_millis(3);
/// How many calls a task makes.
const STEPS: usize = 6;

/// What happens in a round besides the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// The clock is moved, and the store swept.
    pub(super) clock_moves: bool,
    /// Some calls are dropped before they have ended.
    pub(super) drops: bool,
}

/// Plays the round of a seed, and gives the history of each key.
pub(super) async fn play(
    world: &World<'_>,
    handles: &[Arc<dyn Store>],
    (kind, is_patient): (Kind, bool),
    (number, seed): (usize, u64),
) -> Vec<History> {
    let mut rng = Rng::from_seed(seed);
    let counter = Counter::default();
    let mut watch = Watch { world, counter: counter.clone(), readings: Vec::new() };
    watch.read().await;

    let lengths = Lengths::new(world.harness, kind.clock_moves);
    let mut keys = Vec::new();
    let mut is_early = false;
    for key in 0..KEYS {
        let board = Arc::new(Board::new(number, key));
        let start = Start::choose(&mut rng, world.harness);
        let recorder = Recorder::new(Arc::clone(&handles[key % handles.len()]), "start", counter.clone());
        prepare(&recorder, &board, start, Chooser::new(Rng::from_seed(rng.next()), lengths, "s")).await;
        is_early |= start.waits_for_the_clock();
        keys.push((board, recorder.take()));
    }
    if is_early {
        watch.advance(lengths.short).await;
    }
    watch.read().await;

    let plan = Plan { kind, is_in_step: rng.chance(75), is_patient };
    let tasks = TASKS.len() - rng.below(3);
    let meeting = Arc::new(Meeting::new(KEYS * tasks + usize::from(kind.clock_moves)));
    let sweeper = kind.clock_moves.then(|| tokio::spawn(sweep(Arc::clone(&handles[0]), Arc::clone(&meeting))));
    let mut running = Vec::new();
    for (key, (board, _)) in keys.iter().enumerate() {
        let steps = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
        for (task, name) in TASKS.iter().take(tasks).enumerate() {
            let player = Player {
                recorder: Recorder::new(Arc::clone(&handles[(key + task) % handles.len()]), name, counter.clone()),
                board: Arc::clone(board),
                chooser: Chooser::new(Rng::from_seed(rng.next()), lengths, name),
                steps: Arc::clone(&steps),
                tasks,
            };
            running.push((key, tokio::spawn(player.play(plan, Arc::clone(&meeting)))));
        }
    }
    if kind.clock_moves {
        for _ in 0..1 + rng.below(3) {
            meeting.wait_for(rng.below(KEYS * tasks * STEPS), &running).await;
            watch.advance(lengths.step(&mut rng, world.harness)).await;
        }
    }
    for (key, task) in running {
        keys[key].1.extend(value(task.await));
    }
    if let Some(sweeper) = sweeper {
        value(sweeper.await);
    }
    watch.read().await;

    for (key, (board, calls)) in keys.iter_mut().enumerate() {
        let recorder = Recorder::new(Arc::clone(&handles[(key + 1) % handles.len()]), "end", counter.clone());
        let _ = recorder.read(&board.scope, &board.key).await; // it is recorded
        calls.extend(recorder.take());
    }
    watch.read().await;
    let (stands, slack) = (world.harness.is_frozen(), world.harness.slack());
    let clock = |readings: &Vec<Reading>| Clock::new(stands, slack, readings.clone());
    keys.into_iter().map(|(_, calls)| History { calls, clock: clock(&watch.readings) }).collect()
}

/// Sweeps beside the calls. What it is answered is no call on a key; what it removes is seen by those.
async fn sweep(store: Arc<dyn Store>, meeting: Arc<Meeting>) {
    meeting.barrier.wait().await;
    for _ in 0..STEPS {
        let _ = store.sweep(NonZeroUsize::MIN.saturating_add(99)).await;
        tokio::task::yield_now().await;
    }
}

/// Brings a key to where the tasks find it.
async fn prepare(recorder: &Recorder, board: &Board, start: Start, mut chooser: Chooser) {
    if start == Start::Absent {
        return;
    }
    let claim = chooser.first_claim(board, start);
    let Ok(Answer::Claimed(grant)) = idem_core::claim(recorder, &claim).await else {
        return; // it is recorded, and not what the machine says
    };
    let owner = grant.owner();
    board.granted(owner);
    // So are the answers to these.
    match start {
        Start::Absent | Start::InProgress | Start::Expired => {}
        Start::Lapsed => drop(recorder.checkpoint(owner, &chooser.checkpoint()).await),
        Start::LapsedUnderHold => drop(recorder.renew(owner, claim.lease()).await),
        Start::Released => drop(recorder.release(owner).await),
        Start::Forgotten => drop(recorder.forget(owner).await),
        Start::Held => drop(recorder.hold(owner, chooser.retention()).await),
        Start::Done => drop(recorder.complete(owner, &chooser.response(), chooser.retention()).await),
    }
}

/// Reads and moves the store's clock, and remembers what was read.
struct Watch<'a> {
    world: &'a World<'a>,
    counter: Counter,
    readings: Vec<Reading>,
}

impl Watch<'_> {
    async fn read(&mut self) {
        let begun = self.counter.next();
        let now = self.world.now().await;
        self.note(begun, now);
    }

    async fn advance(&mut self, by: Duration) {
        if !self.world.harness.is_frozen() {
            self.read().await;
        }
        let begun = self.counter.next();
        self.world.advance(by).await;
        let now = self.world.now().await;
        if self.world.harness.is_frozen() {
            self.note(begun, now);
        } else {
            self.read().await;
        }
    }

    fn note(&mut self, begun: u64, now: idem_core::Timestamp) {
        let is_still = self.world.harness.is_frozen() && self.readings.last().is_some_and(|last| last.now == now);
        if !is_still {
            self.readings.push(Reading { begun, ended: self.counter.next(), now });
        }
    }
}

#[derive(Clone, Copy)]
struct Plan {
    kind: Kind,
    /// Whether the tasks of a key wait for one another before each call, so that calls which never wait meet too.
    is_in_step: bool,
    /// Whether they wait for as long as it takes a busy machine to let another thread run.
    is_patient: bool,
}

/// Where the tasks of a round start together, and how far they have come.
struct Meeting {
    barrier: Barrier,
    made: AtomicUsize,
    progress: Notify,
}

impl Meeting {
    fn new(tasks: usize) -> Self {
        Self { barrier: Barrier::new(tasks), made: AtomicUsize::new(0), progress: Notify::new() }
    }

    /// Waits until so many calls were made.
    async fn wait_for(&self, calls: usize, running: &[(usize, JoinHandle<Vec<Call>>)]) {
        while self.made.load(Ordering::SeqCst) < calls && !running.iter().all(|(_, task)| task.is_finished()) {
            // A task that panics tells nobody.
            let _ = tokio::time::timeout(Duration::from_millis(100), self.progress.notified()).await;
        }
    }
}

struct Player {
    recorder: Recorder,
    board: Arc<Board>,
    chooser: Chooser,
    /// How many tasks of the key have come to each step.
    steps: Arc<[AtomicUsize; STEPS]>,
    /// How many tasks the key has.
    tasks: usize,
}

impl Player {
    async fn play(mut self, plan: Plan, meeting: Arc<Meeting>) -> Vec<Call> {
        meeting.barrier.wait().await;
        let mut is_in_step = true;
        for step in 0..STEPS {
            if is_in_step {
                // Who has waited in vain has the processors against it.
                is_in_step = meet(&self.steps[step], self.tasks, plan.is_patient) && plan.is_in_step;
            }
            let polls = match plan.kind.drops && self.chooser.rng().chance(30) {
                true => 1 + self.chooser.rng().below(8),
                false => usize::MAX,
            };
            let action = self.chooser.next(&self.board);
            // What it was answered is recorded.
            if let Some(Ok(Some(owner))) = drop_after(polls, self.act(action)).await {
                self.board.granted(&owner);
            }
            meeting.made.fetch_add(1, Ordering::SeqCst);
            meeting.progress.notify_one();
        }
        self.recorder.take()
    }

    /// Makes the call, and gives the attempt that it was told to be.
    async fn act(&self, action: Action) -> Result<Option<Owner>, StoreError> {
        let store = &self.recorder;
        match &action {
            Action::Claim(claim) => Ok(match idem_core::claim(store, claim).await? {
                Answer::Claimed(grant) | Answer::TakenOver(grant) => Some(grant.owner().clone()),
                _ => None,
            }),
            Action::Resolve(resolve) => Ok(match idem_core::resolve(store, resolve).await? {
                Fenced::Written(grant) => Some(grant.owner().clone()),
                Fenced::Superseded => None,
            }),
            Action::Complete(owner, response, keep) => store.complete(owner, response, *keep).await.map(|_| None),
            Action::Release(owner) => store.release(owner).await.map(|_| None),
            Action::Forget(owner) => store.forget(owner).await.map(|_| None),
            Action::Hold(owner, keep) => store.hold(owner, *keep).await.map(|_| None),
            Action::Renew(owner, lease) => store.renew(owner, *lease).await.map(|_| None),
            Action::Checkpoint(owner, checkpoint) => store.checkpoint(owner, checkpoint).await.map(|_| None),
            Action::Read => store.read(&self.board.scope, &self.board.key).await.map(|_| None),
            Action::Purge => store.purge(&self.board.scope, NonZeroUsize::MIN).await.map(|_| None),
        }
    }
}

/// Lets the first one wait a moment for a second one on another thread, the third for a fourth, and so on, so that
/// calls which never wait for anything meet too. False if nobody came.
fn meet(arrived: &AtomicUsize, tasks: usize, is_patient: bool) -> bool {
    let place = arrived.fetch_add(1, Ordering::SeqCst);
    if place % 2 == 1 || place + 1 == tasks {
        return true;
    }
    for turn in 0..6_000_u32 {
        if arrived.load(Ordering::SeqCst) > place + 1 {
            return true;
        }
        // Seldom giving the processor up: else the second one is gone before the first one is back.
        if turn % 2_000 == 1_999 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    // Without giving it up at all: where many share the processors, the second one comes on another one, or not.
    let begun = Instant::now();
    while is_patient && begun.elapsed() < PATIENCE {
        if arrived.load(Ordering::SeqCst) > place + 1 {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}
