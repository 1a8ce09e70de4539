//! One step of a random sequence, and how it reads.

use std::{fmt, num::NonZeroUsize, time::Duration};

use idem_core::{AttemptId, Checkpoint, Claim, Fingerprint, OnLapse, Owner, Resolve, Response, Retention, Scope};

use super::{Id, choose::fingerprints};

pub(super) enum Step {
    Advance(Duration),
    Reopen,
    Claim(Claim),
    Complete(Owner, Response, Retention),
    Release(Owner),
    Forget(Owner),
    Hold(Owner, Retention),
    Renew(Owner, Duration),
    Checkpoint(Owner, Checkpoint),
    Resolve(Resolve),
    Read(Id),
    Wait(Id, AttemptId),
    Sweep(NonZeroUsize),
    Lapsed(Option<Id>, NonZeroUsize),
    Purge(Scope, NonZeroUsize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Advance(by) => write!(f, "the clock moves {by:?}"),
            Self::Reopen => f.write_str("every handle is dropped, the store is opened again"),
            Self::Claim(claim) => {
                write!(f, "claim {:?} for {}", claim.token(), named(claim.fingerprint()))?;
                for older in claim.forms().skip(1) {
                    write!(f, " or {}", named(older))?;
                }
                write!(f, ", lease {:?}, {}", claim.lease(), stay(claim.retention()))?;
                if claim.on_lapse() == OnLapse::Hold {
                    f.write_str(", under hold")?;
                }
                claim.lapse_limit().map_or(Ok(()), |limit| write!(f, ", lapse limit {limit}"))?;
                write!(f, " on {:?} {:?}", claim.scope(), claim.key())
            }
            Self::Complete(owner, response, retention) => {
                write!(f, "complete with {response:?}, {}, by {}", stay(*retention), by(owner))
            }
            Self::Release(owner) => write!(f, "release by {}", by(owner)),
            Self::Forget(owner) => write!(f, "forget by {}", by(owner)),
            Self::Hold(owner, retention) => write!(f, "hold, {}, by {}", stay(*retention), by(owner)),
            Self::Renew(owner, lease) => write!(f, "renew for {lease:?} by {}", by(owner)),
            Self::Checkpoint(owner, checkpoint) => {
                write!(f, "checkpoint {:?} of {} bytes by {}", checkpoint.name(), checkpoint.value().len(), by(owner))
            }
            Self::Resolve(resolve) => write!(
                f,
                "resolve {:?} after {:?} #{}, lease {:?}, {}, on {:?} {:?}",
                resolve.token(),
                resolve.seen().token,
                resolve.seen().number,
                resolve.lease(),
                stay(resolve.retention()),
                resolve.scope(),
                resolve.key()
            ),
            Self::Read((scope, key)) => write!(f, "read {scope:?} {key:?}"),
            Self::Wait((scope, key), seen) => {
                write!(f, "wait for no time on {:?} #{} of {scope:?} {key:?}", seen.token, seen.number)
            }
            Self::Sweep(limit) => write!(f, "sweep {limit}"),
            Self::Lapsed(None, limit) => write!(f, "lapsed, {limit} from the start"),
            Self::Lapsed(Some((scope, key)), limit) => write!(f, "lapsed, {limit} after {scope:?} {key:?}"),
            Self::Purge(scope, limit) => write!(f, "purge {limit} of {scope:?}"),
        }
    }
}

fn by(owner: &Owner) -> String {
    let attempt = owner.attempt();
    format!("{:?} #{} of {:?} {:?}", attempt.token, attempt.number, owner.scope(), owner.key())
}

fn stay(retention: Retention) -> String {
    format!("retention {:?} (held {:?})", retention.standard(), retention.held())
}

fn named(fingerprint: &Fingerprint) -> &'static str {
    let names = ["request A", "request B", "request A (keyed)", "request C"];
    let known = fingerprints().iter().zip(names).find(|(known, _)| *known == fingerprint);
    known.map_or("another request", |(_, name)| name)
}
