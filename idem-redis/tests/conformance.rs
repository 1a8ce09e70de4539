//! The conformance suite: what every store must do.

use idem_conformance::{Harness, Place};
use idem_redis::{OpenError, RedisStore};

fn url() -> String {
    std::env::var("DEVREDIS").unwrap()
}

mod single {
    use super::*;

    async fn open(place: &Place) -> Result<RedisStore, OpenError> {
        RedisStore::builder(&url()).prefix(place.name()).clock(place.clock()).build()
    }

    idem_conformance::suite!(Harness::new(async |place: Place| open(&place).await).durable());
}

mod by_the_servers_own_clock {
    use std::time::Duration;

    /// The first claim is a native command, whose instants the client tells as near as it can.
    const RESOLUTION: Duration = Duration::from_millis(20);

    use super::*;

    async fn open(place: &Place) -> Result<RedisStore, OpenError> {
        RedisStore::builder(&url()).prefix(place.name()).connect().await
    }

    idem_conformance::suite!(
        Harness::new(async |place: Place| open(&place).await).durable().real_time().resolution(RESOLUTION)
    );
}
