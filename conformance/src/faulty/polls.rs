//! Futures that are dropped at every point at which they can be.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// Polls a future so often at most, and drops it then: what happens to a handler when its client hangs up, or to a call
/// whose time is over. Gives nothing if it had not ended. With 0 polls it is dropped before it begins.
///
/// ```
/// # async fn example() {
/// for polls in 0.. {
///     let call = async { /* a call, a handler */ };
///     if idem_conformance::faulty::drop_after(polls, call).await.is_some() {
///         break; // it has no further await point
///     }
///     // What must hold, wherever it was dropped.
/// }
/// # }
/// ```
pub fn drop_after<F: Future>(polls: usize, future: F) -> DropAfter<F> {
    DropAfter { future: Some(Box::pin(future)), polls }
}

/// The future of [`drop_after`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct DropAfter<F> {
    future: Option<Pin<Box<F>>>,
    polls: usize,
}

impl<F: Future> Future for DropAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let has_polls = self.polls > 0;
        let Some(future) = self.future.as_mut().filter(|_| has_polls) else {
            self.future = None;
            return Poll::Ready(None);
        };
        match future.as_mut().poll(context) {
            Poll::Ready(output) => {
                self.future = None;
                Poll::Ready(Some(output))
            }
            Poll::Pending => {
                self.polls -= 1;
                if self.polls == 0 {
                    self.future = None;
                    return Poll::Ready(None);
                }
                Poll::Pending
            }
        }
    }
}
