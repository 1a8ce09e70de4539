//! Machines with one rule broken each, and by what the check finds that out.

use std::time::Duration;

use super::{
    actor::Write::{Checkpoint as Keep, Complete, Forget, Hold, Release, Renew},
    holds, requests,
    rules::Rules,
    search::search,
    takeovers,
    world::{Bounds, Fault},
};
use crate::{
    Checkpoint, Checkpointed, Claim, Fenced, Fingerprint, Owner, Record, Resolve, Response, Retention, Timestamp,
    machine::{self, Decision, TokenReused, Verdict},
};

#[track_caller]
fn is_found_out(wrong: &impl Rules, bounds: &Bounds, fault: Fault) {
    match search(wrong, bounds) {
        Ok(visited) => panic!("nothing was found in {visited} states"),
        Err(found) => assert_eq!(found.fault, fault, "{found}"),
    }
}

/// Whoever has the record.
fn owner_of(found: Option<&Record>, owner: &Owner) -> Owner {
    found.map_or_else(|| owner.clone(), |record| Owner::of(owner.scope(), owner.key(), record))
}

type Claimed = Result<Decision<Verdict>, TokenReused>;

/// What it writes, as changed.
fn changed<A>(decision: Decision<A>, change: impl FnOnce(Record) -> Record) -> Decision<A> {
    Decision { write: decision.write.map(change), ..decision }
}

#[test]
fn a_completion_by_whoever_comes_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn complete(
            &self,
            found: Option<&Record>,
            owner: &Owner,
            response: &Response,
            retention: Retention,
            now: Timestamp,
        ) -> Decision<Fenced<Response>> {
            machine::complete(found, &owner_of(found, owner), response, retention, now)
        }
    }
    is_found_out(&Wrong, &takeovers(&[Complete]), Fault::WroteOverAnother);
}

#[test]
fn a_completion_that_creates_a_record_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn complete(
            &self,
            found: Option<&Record>,
            owner: &Owner,
            response: &Response,
            retention: Retention,
            now: Timestamp,
        ) -> Decision<Fenced<Response>> {
            let decision = machine::complete(found, owner, response, retention, now);
            if found.is_some() {
                return decision;
            }
            let fingerprint = Fingerprint::builder().part("body", "one").build().expect("one part makes a fingerprint");
            let claim = Claim::new(owner.scope().clone(), owner.key().clone(), owner.attempt().token, fingerprint);
            let first = machine::claim(None, &claim, now).ok().and_then(|decision| decision.write);
            machine::complete(first.as_ref(), owner, response, retention, now)
        }
    }
    let bounds = Bounds { retention: 2, delay: 2, end: 4, begins: [1, 0, 0], ..takeovers(&[Complete]) };
    is_found_out(&Wrong, &bounds, Fault::CreatedByAWrite);
}

#[test]
fn a_completion_of_what_is_done_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn complete(
            &self,
            found: Option<&Record>,
            owner: &Owner,
            response: &Response,
            retention: Retention,
            now: Timestamp,
        ) -> Decision<Fenced<Response>> {
            let open = found.map(|record| Record { state: crate::State::InProgress, ..record.clone() });
            machine::complete(open.as_ref(), owner, response, retention, now)
        }
    }
    is_found_out(&Wrong, &takeovers(&[Complete]), Fault::TwoOutcomes);
}

#[test]
fn a_release_by_whoever_comes_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn release(&self, found: Option<&Record>, owner: &Owner, now: Timestamp) -> Decision<Fenced<()>> {
            machine::release(found, &owner_of(found, owner), now)
        }
    }
    is_found_out(&Wrong, &takeovers(&[Release]), Fault::WroteOverAnother);
}

#[test]
fn a_renewal_by_whoever_comes_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn renew(
            &self,
            found: Option<&Record>,
            owner: &Owner,
            lease: Duration,
            now: Timestamp,
        ) -> Decision<Fenced<()>> {
            machine::renew(found, &owner_of(found, owner), lease, now)
        }
    }
    is_found_out(&Wrong, &takeovers(&[Renew]), Fault::WroteOverAnother);
}

#[test]
fn a_renewal_that_outlives_its_record_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn renew(
            &self,
            found: Option<&Record>,
            owner: &Owner,
            lease: Duration,
            now: Timestamp,
        ) -> Decision<Fenced<()>> {
            let expiry = found.map(|record| record.expiry);
            changed(machine::renew(found, owner, lease, now), |next| Record {
                expiry: expiry.unwrap_or(next.expiry),
                ..next
            })
        }
    }
    let bounds = Bounds { lease: 2, retention: 2, ..takeovers(&[Renew]) };
    is_found_out(&Wrong, &bounds, Fault::ExpiresBeforeItsLease);
}

#[test]
fn a_hold_by_whoever_comes_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn hold(
            &self,
            found: Option<&Record>,
            owner: &Owner,
            retention: Retention,
            now: Timestamp,
        ) -> Decision<Fenced<()>> {
            machine::hold(found, &owner_of(found, owner), retention, now)
        }
    }
    is_found_out(&Wrong, &takeovers(&[Hold]), Fault::WroteOverAnother);
}

#[test]
fn a_checkpoint_by_whoever_comes_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn checkpoint(
            &self,
            found: Option<&Record>,
            owner: &Owner,
            checkpoint: &Checkpoint,
            now: Timestamp,
        ) -> Decision<Fenced<Checkpointed>> {
            machine::checkpoint(found, &owner_of(found, owner), checkpoint, now)
        }
    }
    is_found_out(&Wrong, &takeovers(&[Keep]), Fault::WroteOverAnother);
}

#[test]
fn a_forget_that_forgets_what_others_did_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn forget(&self, found: Option<&Record>, owner: &Owner, now: Timestamp) -> Decision<Fenced<()>> {
            changed(machine::forget(found, owner, now), |next| Record { fingerprint: None, ..next })
        }
    }
    is_found_out(&Wrong, &takeovers(&[Release, Forget]), Fault::EffectsWereDenied);
}

#[test]
fn a_takeover_of_a_live_lease_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn claim(&self, found: Option<&Record>, claim: &Claim, now: Timestamp) -> Claimed {
            let lapsed = found.map(|record| Record { lease_end: now, ..record.clone() });
            machine::claim(lapsed.as_ref(), claim, now)
        }
    }
    is_found_out(&Wrong, &takeovers(&[Complete]), Fault::TakenWhileLeased);
}

#[test]
fn a_takeover_under_the_same_number_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn claim(&self, found: Option<&Record>, claim: &Claim, now: Timestamp) -> Claimed {
            let decision = machine::claim(found, claim, now)?;
            Ok(changed(decision, |next| Record { number: found.map_or(1, |record| record.number), ..next }))
        }
    }
    is_found_out(&Wrong, &takeovers(&[Complete]), Fault::AttemptTwice);
}

#[test]
fn a_takeover_that_denies_the_attempt_before_it_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn claim(&self, found: Option<&Record>, claim: &Claim, now: Timestamp) -> Claimed {
            Ok(changed(machine::claim(found, claim, now)?, |next| Record { repeat: false, ..next }))
        }
    }
    is_found_out(&Wrong, &takeovers(&[Complete]), Fault::EffectsWereDenied);
}

#[test]
fn an_answer_to_whatever_request_comes_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn claim(&self, found: Option<&Record>, claim: &Claim, now: Timestamp) -> Claimed {
            let same = found.map(|record| Record { fingerprint: Some(claim.fingerprint().clone()), ..record.clone() });
            machine::claim(same.as_ref(), claim, now)
        }
    }
    is_found_out(&Wrong, &requests(), Fault::AnsweredAnotherRequest);
}

#[test]
fn a_record_that_is_in_progress_for_ever_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn claim(&self, found: Option<&Record>, claim: &Claim, now: Timestamp) -> Claimed {
            let leased = found.map(|record| Record { lease_end: record.expiry, ..record.clone() });
            machine::claim(leased.as_ref(), claim, now)
        }
    }
    is_found_out(&Wrong, &takeovers(&[Complete]), Fault::StuckForEver);
}

#[test]
fn a_resolve_of_an_attempt_that_runs_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn resolve(&self, found: Option<&Record>, resolve: &Resolve, now: Timestamp) -> Decision<Fenced<()>> {
            let lapsed = found.map(|record| Record { lease_end: now, ..record.clone() });
            machine::resolve(lapsed.as_ref(), resolve, now)
        }
    }
    is_found_out(&Wrong, &holds(), Fault::TwoOwners);
}

#[test]
fn a_resolve_of_another_attempt_than_was_seen_is_found_out() {
    struct Wrong;
    impl Rules for Wrong {
        fn resolve(&self, found: Option<&Record>, resolve: &Resolve, now: Timestamp) -> Decision<Fenced<()>> {
            let done = found.map(|record| Record { state: crate::State::Held, ..record.clone() });
            machine::resolve(done.as_ref(), resolve, now)
        }
    }
    is_found_out(&Wrong, &holds(), Fault::TwoOwners);
}
