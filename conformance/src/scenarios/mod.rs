//! The eight documented scenarios: a payments service over the store, with a provider and a ledger.
//!
//! Test n plays scenarios 1 to n, and after each the totals of calls to the provider, distinct charges and stored
//! payments must be exact.
//!
//! | # | what happens | what the client gets | calls | charges | payments |
//! |---|---|---|---|---|---|
//! | 1 | tenant 7, key `k-1`, amount 250000 | 201, payment 1, charge A | 1 | 1 | 1 |
//! | 2 | a retry | the same bytes, as a replay | 1 | 1 | 1 |
//! | 3 | the same key, amount 1 | reuse; nothing runs | 1 | 1 | 1 |
//! | 4 | tenant 8, the same key | 201, payment 2, charge B | 2 | 2 | 2 |
//! | 5 | two requests at the same moment, `k-2` | 201, and in progress | 3 | 3 | 3 |
//! | 6 | `k-3`: the process dies after the charge | nothing | 4 | 4 | 3 |
//! | 7 | a retry of 6 at once | in progress | 4 | 4 | 3 |
//! | 8 | a retry of 6 after the lease | 201, payment 4, the same charge | 5 | 4 | 4 |

mod shop;

use std::{convert::Infallible, sync::Arc, time::Duration};

use idem_core::{Claim, Response, Scope, State, Store};
use idem_runner::{Idempotency, Outcome, Request, Sweep};
use tokio::sync::Barrier;

use self::shop::{Shop, Totals};
use crate::{
    Harness,
    expect::{claimed, present},
    world::{World, fingerprint, key, scope},
};

/// Calls, charges and payments after each scenario.
const TOTALS: [(usize, usize, usize); 8] =
    [(1, 1, 1), (1, 1, 1), (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 3), (4, 4, 3), (5, 4, 4)];

const AMOUNT: u64 = 250_000;

/// Scenario 1: the first attempt gets its payment.
pub async fn scenario_1_a_first_attempt_gets_its_payment(harness: &Harness) {
    play(harness, 1).await;
}

/// Scenario 2: a retry gets byte for byte what the first attempt got, and no second payment is made.
pub async fn scenario_2_a_retry_gets_the_same_bytes_and_makes_no_payment(harness: &Harness) {
    play(harness, 2).await;
}

/// Scenario 3: another amount under the key is reuse; nothing runs, and the record is untouched.
pub async fn scenario_3_another_amount_under_the_key_is_reuse_and_runs_nothing(harness: &Harness) {
    play(harness, 3).await;
}

/// Scenario 4: the same key of another tenant is a payment of its own.
pub async fn scenario_4_the_same_key_of_another_tenant_is_its_own_payment(harness: &Harness) {
    play(harness, 4).await;
}

/// Scenario 5: of two requests at the same moment one makes the payment and the other is told that it is in progress.
pub async fn scenario_5_two_requests_at_once_make_one_payment(harness: &Harness) {
    play(harness, 5).await;
}

/// Scenario 6: a process that dies after the charge leaves its record in progress.
pub async fn scenario_6_a_death_after_the_charge_leaves_the_record_in_progress(harness: &Harness) {
    play(harness, 6).await;
}

/// Scenario 7: a retry of that is told that it is in progress while the lease is live.
pub async fn scenario_7_a_retry_before_the_lease_ends_is_a_conflict(harness: &Harness) {
    play(harness, 7).await;
}

/// Scenario 8: after the lease a retry takes over, sees that it is a repeat, and gets the same charge.
pub async fn scenario_8_a_retry_after_the_lease_takes_over_and_gets_the_same_charge(harness: &Harness) {
    play(harness, 8).await;
}

async fn play(harness: &Harness, scenarios: usize) {
    let mut service = Service::new(harness).await;
    for scenario in 1..=scenarios {
        match scenario {
            1 => service.first_attempt().await,
            2 => service.retry().await,
            3 => service.another_amount().await,
            4 => service.another_tenant().await,
            5 => service.two_at_once().await,
            6 => service.death_after_the_charge().await,
            7 => service.retry_at_once().await,
            _ => service.retry_after_the_lease().await,
        }
        let (calls, charges, payments) = TOTALS[scenario - 1];
        assert_eq!(
            service.shop.totals(),
            Totals { calls, charges, payments },
            "After scenario {scenario} the totals must be exact"
        );
    }
    service.end(scenarios).await;
}

/// Two servers on one store, in front of one shop.
struct Service<'a> {
    world: World<'a>,
    shop: Shop,
    servers: [Idempotency; 2],
    lease: Duration,
    /// What the client of scenario 1 got.
    first: Option<Response>,
    /// When the lease of scenario 6 ends.
    lease_end: Option<idem_core::Timestamp>,
}

type Paid = Outcome<Response, Infallible>;

impl<'a> Service<'a> {
    async fn new(harness: &'a Harness) -> Self {
        let world = World::new(harness).await;
        // In real time there must be room for a scenario in it.
        let lease = if harness.waits() { 5 * world.lease() } else { world.lease() };
        let server = |store: Arc<dyn Store>| {
            let builder = Idempotency::builder(store).lease(lease).sweep(Sweep::Off);
            builder.build().expect("the suite sets up the runner validly")
        };
        let servers = [server(Arc::clone(world.store())), server(world.open().await)];
        Self { world, shop: Shop::new(), servers, lease, first: None, lease_end: None }
    }

    /// `POST /payments`. Every key pays a cart of its own.
    async fn post(&self, server: usize, tenant: &str, name: &str, amount: u64) -> Paid {
        self.servers[server].run(request(tenant, name, amount), self.handler(name, amount)).await
    }

    fn handler(
        &self,
        name: &str,
        amount: u64,
    ) -> impl FnOnce(
        idem_runner::Attempt,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>
    + Send
    + use<> {
        let (shop, cart) = (self.shop.clone(), cart(name));
        move |attempt| Box::pin(shop.pay(attempt, cart, amount))
    }

    async fn first_attempt(&mut self) {
        let paid = ran(self.post(0, "tenant 7", "k-1", AMOUNT).await, "A first attempt must run");
        assert_payment(&paid, 1, "ch_A");
        self.first = Some(paid);
    }

    async fn retry(&mut self) {
        for server in [0, 1] {
            let got = self.post(server, "tenant 7", "k-1", AMOUNT).await;
            assert_eq!(
                self.first,
                Some(replayed(got, "A retry must be a replay, on every server")),
                "A replay must equal the first answer to the byte"
            );
        }
    }

    async fn another_amount(&mut self) {
        let (tenant, name) = (scope("tenant 7"), key("k-1"));
        let known = present(self.world.store().read(&tenant, &name).await, "A done record must be there");
        let got = self.post(1, "tenant 7", "k-1", 1).await;
        match got {
            Outcome::Reuse { differences } => {
                let told = differences.to_string();
                assert!(told.contains("body"), "Reuse must say what differs, which is the body; it says {told:?}");
            }
            other => panic!("Another amount under the key must be reuse; the client got {other:?}"),
        }
        let record = present(self.world.store().read(&tenant, &name).await, "A done record must be there");
        assert_eq!(record, known, "Reuse must leave the record untouched");
        let got = self.post(0, "tenant 7", "k-1", AMOUNT).await;
        let got = replayed(got, "A retry of the first request must still be a replay");
        assert_eq!(self.first, Some(got), "A replay must equal the first answer to the byte");
    }

    async fn another_tenant(&mut self) {
        let paid = self.post(0, "tenant 8", "k-1", AMOUNT).await;
        assert_payment(&ran(paid, "The same key of another tenant must run"), 2, "ch_B");
    }

    async fn two_at_once(&mut self) {
        self.shop.slow_down();
        let barrier = Arc::new(Barrier::new(2));
        let [mut one, mut other] = [0, 1].map(|server| {
            let (server, barrier) = (self.servers[server].clone(), Arc::clone(&barrier));
            let (request, handler) = (request("tenant 7", "k-2", AMOUNT), self.handler("k-2", AMOUNT));
            tokio::spawn(async move {
                barrier.wait().await;
                server.run(request, handler).await
            })
        });
        // The payment can't end before the other request was answered: the provider waits for that.
        let (refused, paying) = tokio::select! {
            refused = &mut one => (refused, other),
            refused = &mut other => (refused, one),
        };
        let refused = refused.expect("a request does not panic");
        in_progress(refused, "Of two requests at once the one that runs nothing must be told so");
        self.shop.speed_up();
        let paid = paying.await.expect("a request does not panic");
        assert_payment(&ran(paid, "Of two requests at once one must run"), 3, "ch_C");
    }

    async fn death_after_the_charge(&mut self) {
        let (tenant, name) = (scope("tenant 7"), key("k-3"));
        let claim = Claim::new(tenant.clone(), name.clone(), self.world.token(), payment(AMOUNT));
        let grant = self.world.ask(&claim.with_lease(self.lease)).await;
        let grant = claimed(grant, "A first attempt must be Claimed");
        let operation = idem_core::downstream_key(tenant.as_str(), name.as_str(), "charge");
        assert!(self.shop.reserve(&tenant, cart("k-3"), &operation), "A cart that nobody paid can be reserved");
        self.shop.provide(&operation, AMOUNT).await;
        // Here the process dies: nobody settles, renews or frees anything.
        let record = present(self.world.store().read(&tenant, &name).await, "The record must stay");
        assert_eq!((&record.state, record.attempt()), (&State::InProgress, grant.owner().attempt()));
        self.lease_end = Some(grant.lease_end());
    }

    async fn retry_at_once(&mut self) {
        let Some(end) = self.lease_end else { return };
        let got = self.post(1, "tenant 7", "k-3", AMOUNT).await;
        assert!(self.world.is_before(end).await, "a lease of {:?} is too short for this machine", self.lease);
        in_progress(got, "A retry while the lease of a dead attempt is live must run nothing");
    }

    async fn retry_after_the_lease(&mut self) {
        let Some(end) = self.lease_end else { return };
        self.world.advance_to(end).await;
        let (shop, seen) = (self.shop.clone(), Arc::new(std::sync::Mutex::new(None)));
        let see = Arc::clone(&seen);
        let operation = move |attempt: idem_runner::Attempt| async move {
            if let Ok(mut see) = see.lock() {
                *see = Some((attempt.number(), attempt.is_repeat()));
            }
            shop.pay(attempt, cart("k-3"), AMOUNT).await
        };
        let paid = self.servers[1].run(request("tenant 7", "k-3", AMOUNT), operation).await;
        let paid = ran(paid, "A retry after the lease must run");
        assert_payment(&paid, 4, "ch_D");
        let seen = seen.lock().ok().and_then(|mut seen| seen.take());
        assert_eq!(seen, Some((2, true)), "A takeover must be attempt 2, and the handler must see that it is a repeat");
        let again = self.post(0, "tenant 7", "k-3", AMOUNT).await;
        assert_eq!(replayed(again, "A retry after a takeover must be a replay"), paid);
    }

    /// The records that must be there after so many scenarios: done with 201, but the one that waits for its lease.
    async fn end(self, scenarios: usize) {
        let records = [(1, "tenant 7", "k-1"), (4, "tenant 8", "k-1"), (5, "tenant 7", "k-2"), (6, "tenant 7", "k-3")];
        for (since, tenant, name) in records {
            let read = self.world.store().read(&scope(tenant), &key(name)).await;
            if since > scenarios {
                crate::expect::absent(read, "A key that nobody used must have no record");
                continue;
            }
            let record = present(read, "A key that was used must have a record");
            let status = match &record.state {
                State::Done(response) => Some(response.status()),
                _ => None,
            };
            let expected = if name == "k-3" && scenarios < 8 { None } else { Some(201) };
            assert_eq!(
                status, expected,
                "The record of {tenant} {name} must be done with status 201; it is {record:?}"
            );
        }
        for server in &self.servers {
            assert!(server.shutdown(Duration::from_secs(30)).await, "Every request must have ended by the end");
        }
    }
}

fn request(tenant: &str, name: &str, amount: u64) -> Request {
    let tenant: Scope = scope(tenant);
    Request::new(tenant, key(name), payment(amount))
}

/// The fingerprint of a payment's request.
fn payment(amount: u64) -> idem_core::Fingerprint {
    fingerprint(&format!("{{\"amountMinor\":{amount},\"currency\":\"VND\"}}"))
}

fn cart(name: &str) -> u64 {
    name.bytes().map(u64::from).sum()
}

#[track_caller]
fn ran(paid: Paid, rule: &str) -> Response {
    match paid {
        Outcome::Ran { reply, stored: true } => reply,
        other => panic!("{rule}, and its response be stored; the client got {other:?}"),
    }
}

#[track_caller]
fn replayed(paid: Paid, rule: &str) -> Response {
    match paid {
        Outcome::Replay { response, .. } => response,
        other => panic!("{rule}; the client got {other:?}"),
    }
}

#[track_caller]
fn in_progress(paid: Paid, rule: &str) {
    match paid {
        Outcome::Conflict { retry_after } => {
            let limits = Duration::from_secs(1)..=Duration::from_secs(5);
            assert!(limits.contains(&retry_after), "Retry-After must be 1 to 5 seconds and is {retry_after:?}");
        }
        other => panic!("{rule}: Conflict; the client got {other:?}"),
    }
}

#[track_caller]
fn assert_payment(response: &Response, id: usize, charge: &str) {
    let body = format!(r#"{{ "id":"{id}", "chargeId":"{charge}", "amountMinor":{AMOUNT}, "status":"succeeded" }}"#);
    let expected = Response::new(201)
        .with_header("content-type", "application/json")
        .with_header("location", format!("/payments/{id}"))
        .with_body(body);
    assert_eq!(response.status(), 201, "A payment must be answered with 201");
    assert!(*response == expected, "The payment must be number {id} with charge {charge}; the client got another");
}
