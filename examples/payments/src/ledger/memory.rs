//! The ledger in this process.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{NewPayment, Reservation};
use crate::{
    model::{Payment, Tenant},
    provider::Order,
};

#[derive(Default)]
pub(crate) struct MemoryLedger(Mutex<Rows>);

#[derive(Default)]
struct Rows {
    payments: Vec<(NewPayment, Payment)>,
    /// Downstream keys, by tenant and cart.
    carts: HashMap<(Tenant, String), String>,
}

impl Rows {
    fn find(&self, downstream_key: &str) -> Option<&(NewPayment, Payment)> {
        self.payments.iter().find(|(row, _)| row.downstream_key == downstream_key)
    }
}

impl MemoryLedger {
    pub(super) fn reserve(&self, tenant: &Tenant, cart: &str, downstream_key: &str) -> Reservation {
        let mut rows = self.rows();
        let owner = rows.carts.entry((tenant.clone(), cart.into())).or_insert_with(|| downstream_key.into());
        if owner == downstream_key { Reservation::Own } else { Reservation::Taken }
    }

    pub(super) fn find(&self, downstream_key: &str) -> Option<(Order, Payment)> {
        let rows = self.rows();
        let (row, payment) = rows.find(downstream_key)?;
        let order = Order { amount_minor: row.amount_minor, currency: row.currency.clone() };
        Some((order, payment.clone()))
    }

    pub(super) fn insert(&self, new: NewPayment) -> Payment {
        let mut rows = self.rows();
        if let Some((_, written)) = rows.find(&new.downstream_key) {
            return written.clone();
        }
        let payment = Payment::succeeded(rows.payments.len() as u64 + 1, &new.charge_id, new.amount_minor);
        rows.payments.push((new, payment.clone()));
        payment
    }

    pub(super) fn payments(&self, tenant: &Tenant) -> Vec<Payment> {
        let rows = self.rows();
        let of_tenant = rows.payments.iter().filter(|(row, _)| row.tenant == *tenant);
        of_tenant.map(|(_, payment)| payment.clone()).collect()
    }

    pub(super) fn count(&self) -> u64 {
        self.rows().payments.len() as u64
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
