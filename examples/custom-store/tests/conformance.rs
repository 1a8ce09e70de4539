//! The conformance suite: what every store must do.

use custom_store::RedbStore;
use idem_conformance::{Harness, Place};

fn harness() -> Harness {
    let open = async |place: Place| RedbStore::builder(place.dir().join("idem.redb")).clock(place.clock()).open();
    Harness::new(open).durable()
}
idem_conformance::suite!(harness());
