//! The suite as a program runs it: what passed, with which seed, of which version.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::Harness;

/// What the suite found about a store. Displayed as text; [`Report::to_json`] for machines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The version of this crate.
    pub suite_version: &'static str,
    /// What the store calls itself; none if it could not be opened once.
    pub backend: Option<String>,
    /// What the harness declares of the store, and what it does not.
    pub capabilities: Vec<Capability>,
    /// Every check, in the order of the suite.
    pub checks: Vec<Checked>,
}

/// Something that stores differ in beyond the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capability {
    /// `durable`, `shared between processes`, `transactional completion`, `resolution of its clock` or `overhead of a
    /// checkpoint`.
    pub name: &'static str,
    /// What the harness declares: `claimed`, `not claimed`, or how much.
    pub declared: String,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// The module that it is in.
    pub group: &'static str,
    /// Its name: the sentence that must hold.
    pub name: &'static str,
    /// Whether it holds.
    pub verdict: Verdict,
    /// The seed that it played last, where it is random; where it failed, the one that it failed with:
    /// `IDEM_CONFORMANCE_SEED` plays it again.
    pub seed: Option<u64>,
    /// How long it took.
    pub took: Duration,
}

/// Whether a check holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It does.
    Passed,
    /// The harness does not declare what it is about, so nothing was checked.
    NotClaimed {
        /// What is not declared.
        capability: String,
    },
    /// It does not.
    Failed {
        /// What the store did and what it must do.
        finding: String,
    },
}

/// A check, as the report runs it.
#[derive(Clone, Copy)]
struct Check {
    group: &'static str,
    name: &'static str,
    run: fn(Harness),
}

/// Runs every check against the stores of a harness, as many at a time as there are processors, and gives what each of them
/// found. `make` is called for every check.
///
/// It blocks until the last check has ended, and must not be called from within an async runtime. A check that fails also
/// goes through the process's panic hook, which prints it unless there is another.
///
/// ```no_run
/// # fn harness() -> idem_conformance::Harness { unimplemented!() }
/// let report = idem_conformance::report(harness);
/// println!("{report}");
/// std::fs::write("conformance.json", report.to_json())?;
/// assert!(report.is_passed());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn report(make: impl Fn() -> Harness + Sync) -> Report {
    let checks = crate::__for_each_check! { [listed] () };
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![None; checks.len()]));
    let backend = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, Into::into) {
            scope.spawn(|| {
                while let Some(check) = checks.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let at = checks.iter().position(|other| other.name == check.name).unwrap_or_default();
                    let (checked, of) = checked(check, make());
                    locked(&found)[at] = Some(checked);
                    let mut backend = locked(&backend);
                    *backend = backend.take().or(of);
                }
            });
        }
    });
    let checks = found.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect();
    let backend = backend.into_inner().unwrap_or_else(PoisonError::into_inner);
    Report { suite_version: env!("CARGO_PKG_VERSION"), backend, capabilities: make().capabilities(), checks }
}

macro_rules! listed {
    (() $($group:ident::$check:ident,)*) => {
        [$(Check {
            group: stringify!($group),
            name: stringify!($check),
            run: |harness| crate::run(stringify!($check), harness, async |harness: &Harness| {
                crate::$group::$check(harness).await;
            }),
        },)*]
    };
}
use listed;

fn checked(check: &Check, harness: Harness) -> (Checked, Option<String>) {
    let (notes, begun) = (harness.notes(), Instant::now());
    notes.be_quiet();
    let ended = catch_unwind(AssertUnwindSafe(|| (check.run)(harness)));
    let verdict = match (ended, notes.not_claimed()) {
        (Err(panicked), _) => Verdict::Failed { finding: message(&*panicked) },
        (Ok(()), Some(capability)) => Verdict::NotClaimed { capability },
        (Ok(()), None) => Verdict::Passed,
    };
    let Check { group, name, .. } = *check;
    (Checked { group, name, verdict, seed: notes.seed(), took: begun.elapsed() }, notes.backend())
}

fn message(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("it panicked without a message").to_owned()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Report {
    /// Whether no check failed.
    pub fn is_passed(&self) -> bool {
        self.failed().count() == 0
    }

    /// The checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Checked> {
        self.checks.iter().filter(|checked| matches!(checked.verdict, Verdict::Failed { .. }))
    }

    /// The same as JSON: an object with `suite`, `suite_version`, `backend`, `passed` (whether nothing failed) and
    /// `capabilities`, an object of their names and what is declared of each, and `checks`, each with `group`, `name`, `verdict` (`passed`, `not claimed`, `failed`), `took_ms`, and where there is
    /// one `seed` (a string, since it has 64 bits), `capability` or `finding`.
    pub fn to_json(&self) -> String {
        let checks: Vec<_> = self.checks.iter().map(Checked::to_json).collect();
        let capabilities: serde_json::Map<_, _> =
            self.capabilities.iter().map(|one| (one.name.to_owned(), one.declared.as_str().into())).collect();
        let report = json!({
            "suite": env!("CARGO_PKG_NAME"),
            "suite_version": self.suite_version,
            "backend": self.backend,
            "passed": self.is_passed(),
            "capabilities": capabilities,
            "checks": checks,
        });
        format!("{report:#}")
    }
}

impl Checked {
    fn to_json(&self) -> serde_json::Value {
        let mut checked = json!({
            "group": self.group,
            "name": self.name,
            "verdict": self.verdict.word(),
            "took_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
        });
        if let Some(seed) = self.seed {
            checked["seed"] = seed.to_string().into();
        }
        match &self.verdict {
            Verdict::Passed => {}
            Verdict::NotClaimed { capability } => checked["capability"] = capability.as_str().into(),
            Verdict::Failed { finding } => checked["finding"] = finding.as_str().into(),
        }
        checked
    }
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::NotClaimed { .. } => "not claimed",
            Self::Failed { .. } => "failed",
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |word| self.checks.iter().filter(|checked| checked.verdict.word() == word).count();
        writeln!(
            f,
            "{} {} on {}: {} passed, {} failed, {} not claimed",
            env!("CARGO_PKG_NAME"),
            self.suite_version,
            self.backend.as_deref().unwrap_or("a store that could not be opened"),
            count("passed"),
            count("failed"),
            count("not claimed"),
        )?;
        for Capability { name, declared } in &self.capabilities {
            writeln!(f, "  {name}: {declared}")?;
        }
        for checked in &self.checks {
            write!(f, "  {:<12}{}::{}", checked.verdict.word(), checked.group, checked.name)?;
            match (&checked.verdict, checked.seed) {
                (Verdict::NotClaimed { capability }, _) => writeln!(f, " ({capability})")?,
                (_, Some(seed)) => writeln!(f, " (seed {seed})")?,
                _ => writeln!(f)?,
            }
        }
        for checked in self.failed() {
            if let Verdict::Failed { finding } = &checked.verdict {
                writeln!(f, "\n{}::{}\n{finding}", checked.group, checked.name)?;
            }
        }
        Ok(())
    }
}
