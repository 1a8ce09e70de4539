//! The world outside the store: a payment provider, a ledger, and the handler between them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use idem_core::{Response, Scope};
use idem_runner::Attempt;
use tokio::sync::Semaphore;

/// A payments service: what it has done so far counts, whichever server did it.
#[derive(Clone, Debug)]
pub(super) struct Shop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    books: Mutex<Books>,
    /// As many permits as charges may go through; the provider takes its time when there are none.
    provider: Semaphore,
}

#[derive(Debug, Default)]
struct Books {
    /// How often the provider was called.
    calls: usize,
    /// The charges it made, by the key that it was called with: the same key gives the same charge.
    charges: BTreeMap<String, Charge>,
    /// Which operation has reserved a tenant's cart, by its downstream key.
    reservations: BTreeMap<(Scope, u64), String>,
    /// The payments that were stored, by the operation that did.
    payments: Vec<(String, Payment)>,
}

#[derive(Clone, Debug)]
struct Charge {
    id: String,
    amount: u64,
}

#[derive(Clone, Debug)]
struct Payment {
    id: usize,
    charge: Charge,
}

/// How often the provider was called, how many distinct charges it made, and how many payments are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) calls: usize,
    pub(super) charges: usize,
    pub(super) payments: usize,
}

impl Shop {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner { books: Mutex::default(), provider: Semaphore::new(Semaphore::MAX_PERMITS) }))
    }

    pub(super) fn totals(&self) -> Totals {
        let books = self.books();
        Totals { calls: books.calls, charges: books.charges.len(), payments: books.payments.len() }
    }

    /// The handler of `POST /payments`: reserves the cart, charges, stores the payment, answers with it.
    pub(super) async fn pay(self, attempt: Attempt, cart: u64, amount: u64) -> Result<Response, Infallible> {
        let operation = attempt.downstream_key("charge");
        if !self.reserve(attempt.scope(), cart, &operation) {
            return Ok(Response::new(409).with_body(r#"{"error":"the cart is paid"}"#));
        }
        let charge = self.charge(&operation, amount).await;
        let payment = self.store(&operation, charge);
        let body = format!(
            "{{ \"id\":\"{}\", \"chargeId\":\"{}\", \"amountMinor\":{}, \"status\":\"succeeded\" }}",
            payment.id, payment.charge.id, payment.charge.amount
        );
        Ok(Response::new(201)
            .with_header("content-type", "application/json")
            .with_header("location", format!("/payments/{}", payment.id))
            .with_body(body))
    }

    /// Whether the cart is this operation's: reserved now, or by an earlier attempt of it.
    pub(super) fn reserve(&self, tenant: &Scope, cart: u64, operation: &str) -> bool {
        let mut books = self.books();
        books.reservations.entry((tenant.clone(), cart)).or_insert_with(|| operation.to_owned()) == operation
    }

    /// Calls the provider.
    pub(super) async fn provide(&self, operation: &str, amount: u64) {
        self.charge(operation, amount).await;
    }

    async fn charge(&self, operation: &str, amount: u64) -> Charge {
        let charge = {
            let mut books = self.books();
            books.calls += 1;
            let next = char::from(b'A' + u8::try_from(books.charges.len()).unwrap_or(25));
            let make = || Charge { id: format!("ch_{next}"), amount };
            books.charges.entry(operation.to_owned()).or_insert_with(make).clone()
        };
        if let Ok(permit) = self.0.provider.acquire().await {
            drop(permit);
        }
        charge
    }

    fn store(&self, operation: &str, charge: Charge) -> Payment {
        let mut books = self.books();
        if let Some((_, payment)) = books.payments.iter().find(|(by, _)| by == operation) {
            return payment.clone();
        }
        let payment = Payment { id: books.payments.len() + 1, charge };
        books.payments.push((operation.to_owned(), payment.clone()));
        payment
    }

    /// Lets the provider take its time until [`Shop::speed_up`].
    pub(super) fn slow_down(&self) {
        self.0.provider.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(super) fn speed_up(&self) {
        self.0.provider.add_permits(Semaphore::MAX_PERMITS);
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
