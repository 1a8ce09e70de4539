//! The suite as a program runs it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Reference, Right, Rules};
use idem_conformance::{Harness, Place, Verdict, report};
use idem_core::{Key, Scope};

#[test]
fn a_report_of_a_right_store_has_every_check_its_seeds_and_what_is_not_claimed() {
    // Neither durable nor transactional, as far as it says.
    let report = report(|| Harness::new(async |place: Place| Ok::<_, String>(Reference::<Right>::open(&place))));
    assert!(report.is_passed(), "{report}");
    assert_eq!(report.suite_version, env!("CARGO_PKG_VERSION"));
    let backend = report.backend.clone().unwrap();
    let not_claimed: Vec<&str> = report
        .checks
        .iter()
        .filter(|checked| matches!(checked.verdict, Verdict::NotClaimed { .. }))
        .map(|checked| checked.group)
        .collect();
    let claimable = ["durability", "processes", "transactions"];
    assert!(claimable.iter().all(|group| not_claimed.contains(group)), "{not_claimed:?}");
    assert!(not_claimed.iter().all(|group| claimable.contains(group)), "{not_claimed:?}");
    let declared: Vec<_> = report.capabilities.iter().map(|one| (one.name, &one.declared[..])).collect();
    let not = "not claimed";
    let clock = ("resolution of its clock", "to the millisecond, by a clock that stands still");
    let overhead = ("overhead of a checkpoint", "0 bytes");
    let others = ["durable", "shared between processes", "transactional completion"].map(|name| (name, not));
    assert_eq!(declared, [&others[..], &[clock, overhead]].concat());
    let seeded = report.checks.iter().filter(|checked| checked.seed.is_some()).map(|checked| checked.group);
    let seeded: Vec<_> = seeded.collect();
    assert!(seeded.contains(&"agreement") && seeded.contains(&"faults"), "{seeded:?}");

    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!((&json["backend"], &json["passed"]), (&backend.into(), &true.into()));
    assert_eq!(json["capabilities"]["durable"], not);
    assert_eq!(json["checks"].as_array().unwrap().len(), report.checks.len());
    let first = &json["checks"][0];
    assert_eq!((&first["group"], &first["verdict"]), (&"scenarios".into(), &"passed".into()));
    let agreement = json["checks"].as_array().unwrap().iter().find(|check| check["group"] == "agreement").unwrap();
    assert!(agreement["seed"].as_str().unwrap().parse::<u64>().is_ok());

    let text = report.to_string();
    assert!(text.starts_with(&format!("idem-conformance {} on ", report.suite_version)), "{text}");
    assert!(text.contains("\n  shared between processes: not claimed\n"), "{text}");
    assert!(text.contains(" 0 failed, ") && text.contains("not claimed "), "{text}");
}

/// Lists what waits by the key first.
#[derive(Default)]
struct ByKey;

impl Rules for ByKey {
    fn rank(&self, id: &(Scope, Key)) -> (String, String) {
        (id.1.as_str().into(), id.0.as_str().into())
    }
}

#[test]
fn a_report_of_a_wrong_store_says_which_checks_failed_and_what_the_store_did() {
    let report = report(Reference::<ByKey>::harness);
    assert!(!report.is_passed());
    let listed = report.failed().find(|checked| checked.name.contains("listed_in_order")).unwrap();
    let Verdict::Failed { finding } = &listed.verdict else { panic!("{listed:?}") };
    let text = report.to_string();
    assert!(!finding.is_empty() && text.contains(finding), "{text}");
    assert!(text.contains("  failed      housekeeping::records_that_wait_for_someone_are_listed_in_order"), "{text}");
    assert!(text.contains("  passed      claims::a_claim_of_an_unused_key"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    let checks = json["checks"].as_array().unwrap();
    let failed = checks.iter().find(|check| check["name"] == listed.name).unwrap();
    assert_eq!((&failed["verdict"], failed["finding"].as_str()), (&"failed".into(), Some(finding.as_str())));
    assert_eq!(json["passed"], false);
}
