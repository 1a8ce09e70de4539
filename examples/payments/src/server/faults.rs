//! Faults that a client may ask for, in order to see what its retries do.

use std::time::Duration;

use axum::http::HeaderMap;

use crate::provider::DELAY;

/// The longest delay that may be asked for: an hour.
const MAX_DELAY_MS: u64 = 60 * 60 * 1_000;

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// `X-Delay-Ms: N`: the provider answers N milliseconds after it charged.
    pub(super) delay: Duration,
    /// `X-Fail: 503`: 503 after the charge and before the row.
    pub(super) fail: bool,
    /// `X-Crash: POINT`: the process aborts there.
    pub(super) crash: Option<Point>,
}

/// Where a payment can be cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// `after-charge`: the provider has charged, and nothing is written.
    AfterCharge,
    /// `after-row`: the row is written, and the record is not. Where they share a transaction, it is not committed.
    AfterRow,
}

impl Faults {
    /// Reads the headers, or says what is wrong with them.
    pub(super) fn parse(headers: &HeaderMap) -> Result<Self, String> {
        let value = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let mut faults = Self::default();
        if let Some(delay) = value(DELAY) {
            let millis = delay.parse().ok().filter(|millis| *millis <= MAX_DELAY_MS);
            let millis = millis.ok_or(format!("X-Delay-Ms must be a whole number up to {MAX_DELAY_MS}"))?;
            faults.delay = Duration::from_millis(millis);
        }
        if let Some(fail) = value("x-fail") {
            if fail != "503" {
                return Err("X-Fail must be 503".into());
            }
            faults.fail = true;
        }
        if let Some(crash) = value("x-crash") {
            faults.crash = match crash {
                "after-charge" => Some(Point::AfterCharge),
                "after-row" => Some(Point::AfterRow),
                _ => return Err("X-Crash must be after-charge or after-row".into()),
            };
        }
        Ok(faults)
    }

    /// Ends the process if that was asked for at this point.
    pub(super) fn reached(&self, point: Point) {
        if self.crash == Some(point) {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &'static str, value: &'static str) -> Result<Faults, String> {
        Faults::parse(&HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]))
    }

    #[test]
    fn each_fault_is_read_from_its_header() {
        assert_eq!(Faults::parse(&HeaderMap::new()), Ok(Faults::default()));
        let delay = Duration::from_millis(1_500);
        assert_eq!(parsed("x-delay-ms", "1500"), Ok(Faults { delay, ..Faults::default() }));
        assert_eq!(parsed("x-fail", "503"), Ok(Faults { fail: true, ..Faults::default() }));
        let crash = |point| Ok(Faults { crash: Some(point), ..Faults::default() });
        assert_eq!(parsed("x-crash", "after-charge"), crash(Point::AfterCharge));
        assert_eq!(parsed("x-crash", "after-row"), crash(Point::AfterRow));
    }

    #[test]
    fn a_fault_that_can_not_be_read_is_refused_rather_than_left_out() {
        for (name, value) in [
            ("x-delay-ms", "soon"),
            ("x-delay-ms", "-1"),
            ("x-delay-ms", "3600001"),
            ("x-fail", "500"),
            ("x-crash", ""),
        ] {
            let problem = parsed(name, value).unwrap_err();
            assert!(problem.to_ascii_lowercase().starts_with(name), "{problem}");
        }
    }
}
