//! Processes by their id: whether one runs, its children, signals to them.

use std::process::Command;
use std::time::{Duration, Instant};

/// Whether a process runs. One that has ended and that nobody has waited for does not.
#[must_use]
pub fn is_running(id: u32) -> bool {
    state(id).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The processes that this one started and that still run.
fn children(parent: u32) -> Vec<u32> {
    if cfg!(target_os = "linux") {
        let entries = std::fs::read_dir("/proc").unwrap_or_else(|error| panic!("/proc can't be read: {error}"));
        let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        return ids.filter(|id| stat(*id).is_some_and(|(state, of)| of == parent && state != 'Z')).collect();
    }
    let output = Command::new("pgrep").args(["-P", &parent.to_string()]).output();
    let output = output.unwrap_or_else(|error| panic!("pgrep can't be run: {error}"));
    String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.parse().ok()).collect()
}

/// Sends a signal to processes. One that is gone already is no failure: the caller looks at what runs afterwards.
pub(crate) fn signal(name: &str, ids: &[u32]) {
    if ids.is_empty() {
        return;
    }
    // The shell's own `kill`: not every system has the program.
    let status = Command::new("/bin/sh")
        .args(["-c", r#"signal=$1; shift; for id; do kill -s "$signal" "$id" 2>/dev/null; done; :"#, "kill", name])
        .args(ids.iter().map(u32::to_string))
        .status();
    assert!(status.is_ok_and(|status| status.success()), "/bin/sh can't be run");
}

/// Holds a process still, so that its children stay the same, and lists them.
pub(crate) fn freeze(id: u32) -> Vec<u32> {
    signal("STOP", &[id]);
    await_stop(id);
    children(id)
}

/// Waits until a process that got SIGSTOP stands still.
fn await_stop(id: u32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_running(id) && state(id) != Some('T') {
        assert!(Instant::now() < deadline, "process {id} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until none of them runs.
pub(crate) fn await_end(ids: &[u32], at_most: Duration) {
    let deadline = Instant::now() + at_most;
    while let Some(id) = ids.iter().find(|id| is_running(**id)) {
        assert!(Instant::now() < deadline, "process {id} still runs {at_most:?} after it was killed");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The letter that systems give to a process's state, such as T for stopped; nothing if there is no such process.
fn state(id: u32) -> Option<char> {
    if cfg!(target_os = "linux") {
        return stat(id).map(|(state, _)| state);
    }
    let output = Command::new("ps").args(["-o", "stat=", "-p", &id.to_string()]).output();
    let output = output.unwrap_or_else(|error| panic!("ps can't be run: {error}"));
    String::from_utf8_lossy(&output.stdout).trim().chars().next()
}

/// State and parent of a process, from what Linux says of it.
fn stat(id: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // "id (name) state parent …", and the name may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
