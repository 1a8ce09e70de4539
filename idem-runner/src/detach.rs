//! Futures that are not cancelled when they are dropped.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Polls its future in place, and hands it to a task when it is dropped unfinished. A task for every request would
/// cost each of them more than this costs the few whose client leaves.
pub(crate) struct Detached<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
    /// Cancelled when nobody polls it in place any more.
    abandoned: Option<CancellationToken>,
}

impl<T: Send + 'static> Detached<T> {
    /// Must be made where it is polled first: it is handed to the runtime that is current now.
    pub(crate) fn new(runtime: Handle, future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)), runtime, abandoned: None }
    }

    /// Cancels the token when it is dropped unfinished: for what is done only as long as somebody wants its answer.
    pub(crate) fn telling(mut self, abandoned: Option<CancellationToken>) -> Self {
        self.abandoned = abandoned;
        self
    }
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // One that panics is gone: it must not be handed to a task.
        let Some(mut future) = self.future.take() else {
            return Poll::Pending; // polled after it was ready, which no caller here does
        };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            if let Some(abandoned) = &self.abandoned {
                abandoned.cancel();
            }
            drop(self.runtime.spawn(future)); // not awaited: the tracker that it was made under waits for it
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::*;

    #[tokio::test]
    async fn what_is_ready_is_not_polled_again_and_tells_nobody_that_it_was_left() {
        let (polls, abandoned) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let counted = polls.clone();
        let future = poll_fn(move |_| Poll::Ready(counted.fetch_add(1, Ordering::SeqCst)));
        let mut detached = Detached::new(Handle::current(), future).telling(Some(abandoned.clone()));
        assert_eq!((&mut detached).await, 0);
        drop(detached);
        tokio::task::yield_now().await;
        assert_eq!((polls.load(Ordering::SeqCst), abandoned.is_cancelled()), (1, false));
    }

    #[tokio::test]
    async fn what_is_dropped_unfinished_is_told_before_it_is_polled_again() {
        let (abandoned, told) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let (looked, telling) = (abandoned.clone(), told.clone());
        let future = async move {
            telling.fetch_add(if looked.is_cancelled() { 1 } else { 100 }, Ordering::SeqCst);
        };
        drop(Detached::new(Handle::current(), future).telling(Some(abandoned)));
        tokio::task::yield_now().await;
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn what_is_dropped_outside_its_runtime_goes_on_in_it() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let detached = Detached::new(runtime.handle().clone(), async move { send.send(()).unwrap() });
        drop(detached);
        assert_eq!(receive.recv(), Ok(()));
        drop(Detached::new(runtime.handle().clone(), pending::<()>()));
        runtime.shutdown_background();
    }
}
