//! The other process: it opens the store at the place that it is told, and does what it reads, line by line.

use std::{
    env,
    fmt::Display,
    io::{self, BufRead, Write},
    process,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use idem_core::{Answer, Checkpoint, Claim, Completion, Grant, Response, Retention, Timestamp};

use super::{DIR, NOW, PLACE, SAYS, payment, payments, tenant};
use crate::{
    End, Harness, Place,
    expect::{ok, written},
    world::{World, key},
};

/// Whether this process is such another one.
pub(super) fn is_asked_for() -> bool {
    env::var_os(PLACE).is_some()
}

/// Does what it reads until it is killed, or nothing is left to read; then it ends the process.
pub(super) async fn serve(harness: &Harness) -> ! {
    let name = env::var(PLACE).expect("the suite names the place");
    let dir = env::var_os(DIR).expect("the suite names the directory");
    let now = env::var(NOW).ok().and_then(|now| now.parse().ok()).expect("the suite tells the clock");
    let world = World::at(harness, Place::of_another_process(name, dir.into(), Timestamp::from_millis(now))).await;
    say("ready");
    let (lines, mut read) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    let mut grants = Vec::new();
    while let Some(line) = read.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["claim", name] => say(claim(&world, name, &mut grants).await),
            ["checkpoint", name, value] => checkpoint(&world, name, value, &grants).await,
            ["complete", name, body] => complete(&world, name, body, &grants).await,
            ["race", rounds, start, every] => say(race(&world, number(rounds), number(start), number(every)).await),
            ["work"] => work(&world).await,
            ["pay"] => pay(&world, harness).await,
            _ => panic!("the suite told another process something that it does not know: {line}"),
        }
    }
    process::exit(0)
}

/// Begins a line, since the test runner may be amid one.
fn say(what: impl Display) {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "\n{SAYS}{what}").and_then(|()| out.flush());
    if said.is_err() {
        process::exit(0) // nobody is there any more
    }
}

fn number(word: &str) -> u64 {
    word.parse().expect("the suite tells a number")
}

async fn claim(world: &World<'_>, name: &str, grants: &mut Vec<Grant>) -> String {
    match ok(world.ask(&claim_of(world, name)).await) {
        Answer::Claimed(grant) | Answer::TakenOver(grant) => {
            grants.push(grant);
            "owns it".to_owned()
        }
        Answer::Conflict { .. } => "conflict".to_owned(),
        Answer::Replay { response, .. } => format!("replay {}", body(&response)),
        other => format!("{other:?}"),
    }
}

fn claim_of(world: &World<'_>, name: &str) -> Claim {
    world.claim(&tenant(), &key(name)).with_lease(world.lease())
}

fn body(response: &Response) -> String {
    match response.body() {
        idem_core::Body::Kept(body) => String::from_utf8_lossy(body).into_owned(),
        other => format!("{other:?}"),
    }
}

fn of<'a>(grants: &'a [Grant], name: &str) -> &'a Grant {
    let found = grants.iter().rfind(|grant| grant.owner().key().as_str() == name);
    found.expect("the suite lets a process write only what it claimed")
}

async fn checkpoint(world: &World<'_>, name: &str, value: &str, grants: &[Grant]) {
    let checkpoint = Checkpoint::new("charge", value.to_owned()).expect("the suite names checkpoints validly");
    let kept = ok(world.store().checkpoint(of(grants, name).owner(), &checkpoint).await);
    say(format!("{kept:?}"));
}

async fn complete(world: &World<'_>, name: &str, body: &str, grants: &[Grant]) {
    let response = Response::new(201).with_body(body.to_owned());
    let completed = world.store().complete(of(grants, name).owner(), &response, Retention::default()).await;
    say(match ok(completed) {
        idem_core::Fenced::Written(_) => "written",
        idem_core::Fenced::Superseded => "superseded",
    });
}

/// Claims a key in each round, all processes at the same moment, and gives the rounds in which it was told that it owns
/// it.
async fn race(world: &World<'_>, rounds: u64, start: u64, every: u64) -> String {
    let mut won = Vec::new();
    for round in 0..rounds {
        let claim = claim_of(world, &format!("race-{round}"));
        let begins = UNIX_EPOCH + Duration::from_micros(start + round * every);
        while SystemTime::now() < begins {
            std::hint::spin_loop();
        }
        if let Answer::Claimed(_) = ok(world.ask(&claim).await) {
            won.push(round.to_string());
        }
    }
    format!("won {}", won.join(","))
}

/// Claims and completes one key after the other.
async fn work(world: &World<'_>) {
    for name in payments() {
        if let Some(grant) = own(world, &name).await {
            let completed = world.store().complete(grant.owner(), &payment(&name), Retention::default()).await;
            written(completed, "A completion by the owner must be Written");
        }
        say(name);
    }
}

/// The same, with a row for each in the transaction that completes it.
async fn pay(world: &World<'_>, harness: &Harness) {
    let hook = harness.transactional().expect("the suite asks for it only where it is claimed");
    for name in payments() {
        if let Some(grant) = own(world, &name).await {
            let completion = Completion::new(grant.owner().clone(), payment(&name), Retention::default());
            let completed = hook.complete_in(&world.place, &completion, &name, End::Commit).await;
            written(completed, "A completion in a transaction by the owner must be Written");
        }
        say(name);
    }
}

/// Claims a key; none if it is done.
async fn own(world: &World<'_>, name: &str) -> Option<Grant> {
    loop {
        match ok(world.ask(&claim_of(world, name)).await) {
            Answer::Claimed(grant) | Answer::TakenOver(grant) => return Some(grant),
            Answer::Replay { .. } => return None,
            // A transaction of a process that was killed may be on its way still.
            Answer::Conflict { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
            other => panic!("A claim of {name} must be Claimed, TakenOver or Replay; the store answered {other:?}"),
        }
    }
}
