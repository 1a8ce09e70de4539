//! What it costs that claims wait for a replica.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use idem_redis::RedisStore;
use tokio::sync::Semaphore;

use crate::{
    Failure,
    cli::Aof,
    input,
    operations::{AnyStore, claimed, compare},
    redis::{
        bare::Bare,
        place::{Place, SPEED, names},
        speed::{claims, value},
    },
    report::{self, Goal},
    rounds::{MANY, Operation, Plan, Side, in_flight},
};

/// How many connections the base may use, since one that waits does nothing else. The store uses as many.
const CONNECTIONS: usize = 32;

pub(crate) async fn measure(aof: Aof, plan: Plan) -> Result<(), Failure> {
    let place = tokio::task::block_in_place(|| Place::prepare(aof));
    let replica = tokio::task::block_in_place(|| place.server.replica());
    let url = place.url(SPEED);
    let store: AnyStore = Arc::new(RedisStore::builder(&url).min_replicas(NonZeroU32::MIN).connect().await?);
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Bare::connect(&url).await?);
    }
    let pool = Arc::new(Pool { idle: Mutex::new(connections), room: Semaphore::new(CONNECTIONS) });
    let value = value(&place, SPEED, &claimed(&store, "running", 1).await?[0].0);

    report::ratios("Claims that wait for a replica against a bare SET PX and WAIT 1")?;
    for tasks in [1, MANY] {
        let sides = [waited_sets(&place, &pool, &value, tasks), claims(&place, SPEED, &store, tasks)];
        compare(&format!("claim with min_replicas, {tasks} in flight"), Goal::None, plan.of(tasks), sides).await?;
    }
    tokio::task::block_in_place(|| drop((replica, place)));
    Ok(())
}

/// Connections, each of which serves one operation at a time.
struct Pool {
    idle: Mutex<Vec<Bare>>,
    room: Semaphore,
}

impl Pool {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Bare>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets that wait for the replica.
struct WaitedSets {
    pool: Arc<Pool>,
    names: Vec<String>,
    value: Bytes,
}

impl Operation for WaitedSets {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        let _room = self.pool.room.acquire().await?;
        let connection = self.pool.idle().pop().ok_or("there are fewer connections than places")?;
        connection.set(&self.names[number], &self.value).await?;
        connection.wait().await?;
        self.pool.idle().push(connection);
        Ok(())
    }
}

fn waited_sets<'a>(place: &'a Place, pool: &Arc<Pool>, value: &Bytes, tasks: usize) -> Side<'a> {
    let (pool, value) = (Arc::clone(pool), value.clone());
    Box::new(move |count| {
        let (pool, value) = (Arc::clone(&pool), value.clone());
        Box::pin(async move {
            let names = names(&input::claims("new", count)?);
            let sets = WaitedSets { pool, names: names.clone(), value };
            let took = in_flight(tasks, count, Arc::new(sets)).await?;
            place.remove(SPEED, names);
            Ok(took)
        })
    })
}
