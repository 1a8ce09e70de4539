//! The reference store passes the suite, wired as a third party would.

mod common;

use common::{Hook, Reference, Right};
use idem_conformance::Harness;

fn harness() -> Harness {
    Reference::<Right>::harness().transactions(Hook::<Right>::new())
}

idem_conformance::suite!(harness());
