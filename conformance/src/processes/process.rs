//! Another process, as the one that started it sees it.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{DIR, NOW, Others, PLACE, SAYS};
use crate::world::World;

/// How long another process may take for anything before it counts as hanging.
const DEADLINE: Duration = Duration::from_secs(60);

/// Another process that has opened the store at the same place. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    told: ChildStdin,
    says: UnboundedReceiver<String>,
    complains: Arc<Mutex<String>>,
    reading: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts one, and waits until it has opened the store.
    pub(super) async fn start(others: &Others, world: &World<'_>) -> Self {
        let program = env::current_exe().expect("the test program can be found");
        let mut child = Command::new(program)
            .args(["--exact", &others.test, "--nocapture", "--test-threads=1"])
            .envs(others.environment.iter().map(|(name, value)| (name, value)))
            .env(PLACE, world.place.name())
            .env(DIR, world.place.dir())
            .env(NOW, world.now().await.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the test program can be started again");
        let told = child.stdin.take().expect("its input is a pipe");
        let (out, mut err) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        let (said, says) = unbounded_channel();
        thread::spawn(move || {
            // The test runner's own lines have no such mark.
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            let mut marked = lines.filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned));
            marked.try_for_each(|line| said.send(line))
        });
        let complains = Arc::new(Mutex::default());
        let complaint: Arc<Mutex<String>> = Arc::clone(&complains);
        let reading = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = err.read_to_end(&mut text); // what was read before
            *complaint.lock().unwrap_or_else(PoisonError::into_inner) = String::from_utf8_lossy(&text).into_owned();
        });
        let mut process = Self { child, told, says, complains, reading: Some(reading) };
        let ready = process.next().await;
        assert_eq!(ready, "ready", "another process says first that it is ready");
        process
    }

    /// Tells it what to do.
    pub(crate) fn tell(&mut self, what: &str) {
        // Where it has ended, `next` says why.
        let _ = writeln!(self.told, "{what}").and_then(|()| self.told.flush());
    }

    /// What it says next.
    pub(crate) async fn next(&mut self) -> String {
        match tokio::time::timeout(DEADLINE, self.says.recv()).await {
            Ok(Some(said)) => said,
            Ok(None) => panic!("Another process that uses the store ended by itself. It printed:\n{}", self.end()),
            Err(_) => {
                let printed = self.end();
                panic!("Another process that uses the store did nothing for {DEADLINE:?}. It printed:\n{printed}")
            }
        }
    }

    /// Tells it what to do, and waits for what it says to that.
    pub(crate) async fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.next().await
    }

    /// Kills it as a crash does, and gives what it had said until then and nobody had read.
    pub(crate) async fn kill(mut self) -> Vec<String> {
        self.end();
        let mut said = Vec::new();
        while let Some(line) = self.says.recv().await {
            said.push(line);
        }
        said
    }

    fn end(&mut self) -> String {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
        self.complains.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
