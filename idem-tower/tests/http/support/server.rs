//! A real server on the loopback, and handlers that wait for the test.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    middleware::{self, Next},
};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle, time::timeout};

use super::{App, DEADLINE};

/// Serves an application over HTTP/1.1 and HTTP/2 until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// How many requests were dropped before they were answered.
    pub(crate) dropped: Gate,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn of(App(app): App) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let dropped = Gate::new();
        let app = notice_drops(app, dropped.clone()).into_make_service_with_connect_info::<SocketAddr>();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, dropped, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn notice_drops(app: Router, dropped: Gate) -> Router {
    app.layer(middleware::from_fn(move |_: ConnectInfo<SocketAddr>, request: Request, next: Next| {
        let guard = OpenOnDrop(Some(dropped.clone()));
        async move {
            let mut guard = guard;
            let response = next.run(request).await;
            guard.0 = None;
            response
        }
    }))
}

struct OpenOnDrop(Option<Gate>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        if let Some(gate) = &self.0 {
            gate.open();
        }
    }
}

/// Something that one side waits for and another brings about, once for each time that it is waited for.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub(crate) fn open(&self) {
        self.0.add_permits(1);
    }

    pub(crate) async fn pass(&self) {
        within(self.0.acquire()).await.unwrap().forget();
    }
}

/// Fails the test if this does not happen.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("it did not happen in time")
}
