//! How results are told.

use std::{
    fmt,
    io::{self, Write},
};

use crate::{Failure, rounds::Spread};

/// What a number should be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    Exactly(f64),
    /// It is told, and no more.
    None,
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
            Self::Exactly(exact) => value == exact,
            Self::None => true,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
            Self::Exactly(exact) => format!("{exact}"),
            Self::None => String::new(),
        };
        f.pad(&text)
    }
}

/// Writes a line to standard output.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Into::into)
}

/// A heading, and what the columns are.
pub(crate) fn ratios(heading: &str) -> Result<(), Failure> {
    say(&format!("\n{heading}"))?;
    say(&format!(
        "  {:<40} {:<8} {:>7} {:<17} {:>8} {:>8}",
        "", "goal", "median", "[lowest..highest]", "base/s", "idem/s"
    ))
}

/// A ratio of two rates.
pub(crate) fn ratio(what: &str, goal: Goal, ratio: Spread, base: f64, idem: f64) -> Result<(), Failure> {
    let range = format!("[{:.2}..{:.2}]", ratio.lowest, ratio.highest);
    let missed = if goal.is_met(ratio.median) { "" } else { "  MISSED" };
    say(&format!("  {what:<40} {goal:<8} {:>7.2} {range:<17} {base:>8.0} {idem:>8.0}{missed}", ratio.median))
}

/// A number that is no ratio.
pub(crate) fn number(what: &str, goal: Goal, value: f64, unit: &str) -> Result<(), Failure> {
    let missed = if goal.is_met(value) { "" } else { "  MISSED" };
    let value = if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.1}") };
    say(&format!("  {what:<40} {goal:<8} {value:>7} {unit}{missed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_include_their_bounds() {
        assert!(Goal::AtLeast(0.85).is_met(0.85) && !Goal::AtLeast(0.85).is_met(0.849));
        assert!(Goal::AtMost(1.1).is_met(1.1) && !Goal::AtMost(1.1).is_met(1.101));
        assert!(Goal::Exactly(0.0).is_met(0.0) && !Goal::Exactly(0.0).is_met(0.5));
        assert!(Goal::None.is_met(f64::NAN));
    }
}
