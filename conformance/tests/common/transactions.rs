//! Transactions of the reference store: rows and records under its one lock.

use std::marker::PhantomData;

use async_trait::async_trait;
use idem_conformance::{End, Place, Transactions};
use idem_core::{Completion, Fenced, Response, State, Store, StoreError};

use super::{Reference, Rules};

/// Writes the row and the completion in one step.
pub(crate) struct Hook<R>(PhantomData<R>);

/// Writes the row whatever becomes of the completion, as one does who writes it in another transaction.
pub(crate) struct Unfenced<R>(PhantomData<R>);

/// Takes a completion that is there already for its own.
pub(crate) struct Repeating<R>(PhantomData<R>);

impl<R> Repeating<R> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R> Hook<R> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R> Unfenced<R> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

#[async_trait]
impl<R: Rules> Transactions for Hook<R> {
    async fn complete_in(
        &self,
        place: &Place,
        completion: &Completion,
        row: &str,
        end: End,
    ) -> Result<Fenced<Response>, StoreError> {
        let store = Reference::<R>::open(place);
        let mut shelf = store.kept.shelf.lock().unwrap();
        let owner = completion.owner();
        let id = store.rules.id(owner.scope(), owner.key());
        let mut slot = shelf.get(&id);
        let now = store.now();
        if slot.as_ref().is_some_and(|record| matches!(record.state, State::Done(_))) {
            return Ok(Fenced::Superseded);
        }
        let answer = store.rules.complete(&mut slot, owner, completion.response(), completion.retention(), now);
        if end == End::Commit && answer != Fenced::Superseded {
            shelf.put(id, slot);
            shelf.rows.push(row.to_owned());
        }
        drop(shelf);
        Ok(answer)
    }

    async fn rows(&self, place: &Place) -> Vec<String> {
        Reference::<R>::open(place).kept.shelf.lock().unwrap().rows.clone()
    }
}

#[async_trait]
impl<R: Rules> Transactions for Unfenced<R> {
    async fn complete_in(
        &self,
        place: &Place,
        completion: &Completion,
        row: &str,
        end: End,
    ) -> Result<Fenced<Response>, StoreError> {
        let hook = Hook::<R>::new();
        let answer = hook.complete_in(place, completion, row, end).await?;
        if end == End::Commit && answer == Fenced::Superseded {
            Reference::<R>::open(place).kept.shelf.lock().unwrap().rows.push(row.to_owned());
        }
        Ok(answer)
    }

    async fn rows(&self, place: &Place) -> Vec<String> {
        Hook::<R>::new().rows(place).await
    }
}

#[async_trait]
impl<R: Rules> Transactions for Repeating<R> {
    async fn complete_in(
        &self,
        place: &Place,
        completion: &Completion,
        row: &str,
        end: End,
    ) -> Result<Fenced<Response>, StoreError> {
        let answer = Hook::<R>::new().complete_in(place, completion, row, end).await?;
        if answer != Fenced::Superseded {
            return Ok(answer);
        }
        let store = Reference::<R>::open(place);
        let answer = store.complete(completion.owner(), completion.response(), completion.retention()).await?;
        if end == End::Commit && answer != Fenced::Superseded {
            store.kept.shelf.lock().unwrap().rows.push(row.to_owned());
        }
        Ok(answer)
    }

    async fn rows(&self, place: &Place) -> Vec<String> {
        Hook::<R>::new().rows(place).await
    }
}
