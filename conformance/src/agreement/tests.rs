use std::num::NonZeroUsize;

use super::*;
use crate::common::{Reference, Right};

/// Every answer of every operation, as it is shown in a history.
const ANSWERS: [(&str, &[&str]); 13] = [
    ("claim", &["Claimed(", "TakenOver(", "Replay ", "Conflict ", "Reuse ", "Unknown", "Superseded", "kind: Contract"]),
    ("complete", &["Written(Response", "Superseded"]),
    ("release", &["Written(())", "Superseded"]),
    ("forget", &["Written(())", "Superseded"]),
    ("hold", &["Written(())", "Superseded"]),
    ("renew", &["Written(())", "Superseded"]),
    ("checkpoint", &["Written(Kept", "Written(Full)", "Superseded"]),
    ("resolve", &["Written(Grant", "Superseded"]),
    ("wait", &["Some(", "Ok(None)"]),
    ("sweep", &["Ok(0)", "Ok(1)"]),
    ("lapsed", &["Ok([])", "Ok([Lapsed"]),
    ("purge", &["Ok(0)", "Ok(1)"]),
    ("every handle is dropped", &[""]),
];

#[test]
fn sequences_reach_every_answer_of_every_operation() {
    crate::run("agreement", Reference::<Right>::harness(), async |harness: &Harness| {
        let mut missing: Vec<(&str, &str)> =
            ANSWERS.iter().flat_map(|(step, answers)| answers.iter().map(move |answer| (*step, *answer))).collect();
        for seed in 0..SEQUENCES.0 {
            let sequence = played(harness, seed, STEPS).await;
            for (_, line) in &sequence.past {
                let (step, answer) = line.split_once("->").unwrap();
                let step = step.split_once(" ms  ").unwrap().1;
                missing.retain(|(name, part)| !(step.starts_with(name) && answer.contains(part)));
            }
        }
        assert_eq!(missing, [], "the fewest sequences that are ever played must reach these too");
    });
}

#[test]
fn one_seed_is_one_sequence() {
    crate::run("agreement", Reference::<Right>::harness(), async |harness: &Harness| {
        let [first, again] = [played(harness, 7, STEPS).await, played(harness, 7, STEPS).await];
        assert_eq!(first.past, again.past);
        assert_ne!(first.past, played(harness, 8, STEPS).await.past);
    });
}

#[test]
fn a_sequence_comes_to_the_instants_at_which_leases_and_retentions_end() {
    crate::run("agreement", Reference::<Right>::harness(), async |harness: &Harness| {
        let mut ends = [0; 3];
        let mut sequence = Sequence::new(harness, 1).await;
        for _ in 0..STEPS {
            let now = sequence.world.now().await;
            let step = sequence.chooser.next(&sequence.model, now);
            if let Step::Advance(by) = &step {
                let then = now.after(*by).as_millis();
                for record in sequence.model.values() {
                    for end in [record.lease_end, record.expiry] {
                        for (count, offset) in ends.iter_mut().zip([-1, 0, 1]) {
                            *count += usize::from(then == end.as_millis() + offset);
                        }
                    }
                }
            }
            sequence.take(&step).await.unwrap();
        }
        assert!(ends.iter().all(|count| *count > 5), "before, at and after an end: {ends:?}");
    });
}

#[test]
fn an_expired_record_that_is_still_stored_is_counted_by_the_purge_or_sweep_that_removes_it() {
    crate::run("agreement", Reference::<Right>::harness(), async |harness: &Harness| {
        let (tenant, one) = (crate::world::scope("tenant"), NonZeroUsize::MIN);
        for last in [Step::Purge(tenant.clone(), one), Step::Sweep(one)] {
            let mut sequence = Sequence::new(harness, 1).await;
            for name in ["k", "k%"] {
                let claim = sequence.world.short_claim(&tenant, &crate::world::key(name));
                sequence.take(&Step::Claim(claim)).await.unwrap();
            }
            let expired = sequence.world.retention().standard();
            for step in [Step::Advance(expired), Step::Purge(tenant.clone(), one), last] {
                sequence.take(&step).await.unwrap();
            }
            let answers: Vec<_> = sequence.past.iter().filter(|(_, line)| line.contains("Ok(1)")).collect();
            assert_eq!(answers.len(), 2, "{answers:?}");
        }
    });
}

async fn played(harness: &Harness, seed: u64, steps: usize) -> Sequence<'_> {
    let mut sequence = Sequence::new(harness, seed).await;
    for _ in 0..steps {
        let step = sequence.chooser.next(&sequence.model, sequence.world.now().await);
        sequence.take(&step).await.unwrap();
    }
    sequence
}
