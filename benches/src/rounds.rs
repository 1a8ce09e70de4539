//! How things are compared: in turns, within one run.
//!
//! Absolute times jump on a shared machine; the ratio of two things that ran one right after the other jumps least. So
//! a round consists of short turns of each side, every second time in the opposite order, and what counts is the median
//! of the rounds' ratios.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;

use crate::Failure;

/// Runs so many operations and gives how long they took.
pub(crate) type Side<'a> = Box<dyn Fn(usize) -> BoxFuture<'a, Result<Duration, Failure>> + 'a>;

/// Many operations of one kind, each with its own input.
pub(crate) trait Operation: Send + Sync + 'static {
    /// Runs the one with that number, and fails if its answer is not what it must be.
    fn run(&self, number: usize) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// How often, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// How long the first side takes in a round, about, in seconds.
    pub(crate) seconds: f64,
    /// No fewer operations of a side in a turn than this.
    pub(crate) at_least: usize,
    /// And no more.
    pub(crate) at_most: usize,
}

impl Plan {
    /// The same for so many in flight: a turn is long enough that its ends, where fewer are, do not matter.
    pub(crate) fn of(self, tasks: usize) -> Self {
        Self { at_least: 8 * tasks, ..self }
    }
}

/// Operations per second: of each side, in each round.
pub(crate) struct Rates(Vec<Vec<f64>>);

/// The median of the rounds, and the lowest and the highest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

/// How many are in flight where more than one is and nothing else is said.
pub(crate) const MANY: usize = 64;

/// How often each side comes in a round.
const TURNS: usize = 8;

/// Runs all sides in turns. Each runs as many operations as the others, after a round that does not count.
pub(crate) async fn interleave(plan: Plan, sides: &[Side<'_>]) -> Result<Rates, Failure> {
    let operations = calibrate(plan, &sides[0]).await?;
    let mut rates = vec![Vec::with_capacity(plan.rounds); sides.len()];
    for round in 0..=plan.rounds {
        let mut took = vec![0.0; sides.len()];
        for turn in 0..TURNS {
            let mut order: Vec<usize> = (0..sides.len()).collect();
            if turn % 2 == 1 {
                order.reverse();
            }
            for side in order {
                took[side] += sides[side](operations).await?.as_secs_f64();
            }
        }
        if round > 0 {
            for (rates, took) in rates.iter_mut().zip(took) {
                rates.push((operations * TURNS) as f64 / took);
            }
        }
    }
    Ok(Rates(rates))
}

/// How many operations take as long as a turn should.
async fn calibrate(plan: Plan, side: &Side<'_>) -> Result<usize, Failure> {
    let turn = plan.seconds / TURNS as f64;
    let mut operations = plan.at_least;
    loop {
        let took = side(operations).await?.as_secs_f64();
        if took >= turn / 2.0 || operations >= plan.at_most {
            let fitting = (operations as f64 * turn / took) as usize;
            return Ok(fitting.clamp(plan.at_least, plan.at_most));
        }
        operations *= 4;
    }
}

/// Runs `count` operations, so many at a time as there are tasks.
pub(crate) async fn in_flight(tasks: usize, count: usize, operation: Arc<impl Operation>) -> Result<Duration, Failure> {
    let next = Arc::new(AtomicUsize::new(0));
    let begin = Instant::now();
    // One at a time is a task too: where a future is polled matters, and it must be the same for both sides.
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (next, operation) = (Arc::clone(&next), Arc::clone(&operation));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return Ok::<_, Failure>(());
                    }
                    operation.run(number).await?;
                }
            })
        })
        .collect();
    for task in running {
        task.await??;
    }
    Ok(begin.elapsed())
}

impl Rates {
    /// The median rate of a side.
    pub(crate) fn rate(&self, side: usize) -> f64 {
        Spread::of(&self.0[side]).median
    }

    /// What `of` makes of each round's rates.
    pub(crate) fn spread(&self, of: impl Fn(&[f64]) -> f64) -> Spread {
        let rounds = self.0[0].len();
        let values: Vec<f64> =
            (0..rounds).map(|round| of(&self.0.iter().map(|side| side[round]).collect::<Vec<_>>())).collect();
        Spread::of(&values)
    }
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Self { median, lowest: sorted[0], highest: sorted[sorted.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_median_of_the_rounds_ratios_is_told_and_not_the_ratio_of_the_medians() {
        let rates = Rates(vec![vec![1.0, 10.0, 100.0], vec![3.0, 20.0, 50.0]]);
        let ratio = rates.spread(|rates| rates[1] / rates[0]);
        assert_eq!(ratio, Spread { median: 2.0, lowest: 0.5, highest: 3.0 });
        assert_eq!(rates.rate(1), 20.0);
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
    }

    #[tokio::test]
    async fn every_operation_runs_once_whatever_is_in_flight() {
        struct Count(Mutex<Vec<usize>>);
        impl Operation for Count {
            async fn run(&self, number: usize) -> Result<(), Failure> {
                self.0.lock().unwrap().push(number);
                Ok(())
            }
        }
        for tasks in [1, 7] {
            let count = Arc::new(Count(Mutex::default()));
            in_flight(tasks, 20, Arc::clone(&count)).await.unwrap();
            let mut ran = count.0.lock().unwrap().clone();
            ran.sort_unstable();
            assert_eq!(ran, (0..20).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn sides_take_turns_with_the_same_number_of_operations() {
        let log = Mutex::new(Vec::new());
        let side = |name: char| -> Side<'_> {
            let log = &log;
            Box::new(move |operations| {
                log.lock().unwrap().push((name, operations));
                Box::pin(async { Ok(Duration::from_secs(1)) })
            })
        };
        let plan = Plan { rounds: 2, seconds: 16.0, at_least: 1, at_most: 1000 }.of(32);
        interleave(plan, &[side('a'), side('b')]).await.unwrap();
        let order: String = log.lock().unwrap().iter().map(|(name, _)| *name).collect();
        // One to calibrate, a round that does not count, and two that do.
        assert_eq!(order, "a".to_owned() + &"abba".repeat(3 * TURNS / 2));
        assert!(log.lock().unwrap()[1..].iter().all(|(_, operations)| *operations == 512));
    }
}
