//! The reference store passes the suite, wired as a third party would.

mod common;

use common::{Reference, Right};

idem_conformance::suite!(Reference::<Right>::harness());
