//! Messages that are delivered more than once.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use idem::{Attempt, Fingerprint, Idempotency, Key, Outcome, Request, Response, Scope};

use crate::place::{Ended, Place};

async fn deliver(consumer: &Idempotency, id: &[u8], deliveries: &Arc<AtomicUsize>, fails_until: usize) -> Ended {
    let fingerprint = Fingerprint::builder().part("body", "an invoice").build().unwrap();
    let request = Request::new(Scope::new("queue:invoices").unwrap(), Key::digest_of(id).unwrap(), fingerprint);
    let deliveries = Arc::clone(deliveries);
    let operation = move |attempt: Attempt| async move {
        let before = deliveries.fetch_add(1, Ordering::SeqCst);
        assert_eq!(attempt.is_repeat(), before > 0);
        if before < fails_until { Err("the mail server is away") } else { Ok(Response::new(200)) }
    };
    consumer.run(request, operation).await
}

// cases 039, 046, 113
pub(crate) async fn a_message_is_handled_until_it_succeeds_and_then_no_more_whatever_its_id_is_made_of(place: Place) {
    let (one, _) = place.runner(|builder| builder).await;
    let (other, _) = place.runner(|builder| builder).await;
    let long = vec![b'7'; 1024 * 1024];
    let ids: [&[u8]; 6] = [b"msg-7", b"line\nfeed", b"nul\0", b"../../etc/passwd", b"\x1b[31m\xff", &long];
    let mut names = HashSet::new();
    for id in ids {
        assert!(names.insert(Key::digest_of(id).unwrap()));
        let deliveries = Arc::new(AtomicUsize::new(0));
        for consumer in [&one, &other] {
            let failed = deliver(consumer, id, &deliveries, 2).await;
            assert!(matches!(failed, Outcome::Failed("the mail server is away")), "{failed:?}");
        }
        let done = deliver(&one, id, &deliveries, 2).await;
        assert!(matches!(done, Outcome::Ran { stored: true, .. }), "{done:?}");
        for consumer in [&one, &other] {
            let again = deliver(consumer, id, &deliveries, 2).await;
            assert!(matches!(again, Outcome::Replay { .. }), "{again:?}");
        }
        assert_eq!(deliveries.load(Ordering::SeqCst), 3);
    }
}
