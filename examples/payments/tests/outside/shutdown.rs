//! SIGTERM.

use crate::server::{BODY, Place, Process, assert_replays, is_replay};

#[tokio::test]
async fn a_server_that_is_told_to_end_answers_what_it_has_claimed_and_ends_with_0() {
    for place in Place::lasting() {
        let server = place.serve(&[]).await;
        let (answer, ()) = tokio::join!(server.pay("k-1", BODY, &[("x-delay-ms", "700")]), async {
            server.provider_called(1).await;
            server.signal("-TERM").await;
        });
        assert_eq!(answer.status, 201);
        assert_eq!(server.ended().await, Some(0));
        let server = place.serve(&[]).await;
        assert_replays(&server.pay("k-1", BODY, &[]).await, &answer);
        assert_eq!(server.totals().await, [0, 0, 1]);
    }
}

#[tokio::test]
async fn a_server_that_is_told_to_end_takes_no_connection_while_it_finishes() {
    let server = Process::serve("memory:", &[]).await;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut paying = Box::pin(server.pay("k-1", BODY, &[("x-delay-ms", "2000")]));
    let refused = async {
        server.provider_called(1).await;
        server.signal("-TERM").await;
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        biased;
        answer = &mut paying => panic!("it took connections until the end: {answer:?}"),
        () = refused => {}
    }
    assert_eq!(paying.await.status, 201);
    assert_eq!(server.ended().await, Some(0));
}

#[tokio::test]
async fn a_server_that_is_told_to_end_finishes_what_its_client_has_left() {
    for place in Place::lasting() {
        let provider = Process::provider().await;
        let options = ["--provider", &provider.url];
        let server = place.serve(&options).await;
        let gave_up = tokio::select! {
            answer = server.pay("k-1", BODY, &[("x-delay-ms", "3000")]) => panic!("answered: {answer:?}"),
            () = server.provider_called(1) => true,
        };
        assert!(gave_up);
        server.signal("-TERM").await;
        assert_eq!(server.ended().await, Some(0));
        let server = place.serve(&options).await;
        let retry = server.pay("k-1", BODY, &[]).await;
        assert_eq!((retry.status.as_u16(), is_replay(&retry)), (201, true));
        assert_eq!(server.totals().await, [1, 1, 1]);
    }
}

#[tokio::test]
async fn servers_and_providers_without_work_end_at_once_with_0() {
    for process in [Process::serve("memory:", &[]).await, Process::provider().await] {
        process.signal("-TERM").await;
        assert_eq!(process.ended().await, Some(0));
    }
}

#[tokio::test]
async fn a_client_that_connects_and_says_nothing_does_not_keep_a_server_from_ending() {
    let server = Process::serve("memory:", &[]).await;
    let silent = tokio::net::TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    assert_eq!(server.pay("k-1", BODY, &[]).await.status, 201);
    server.signal("-TERM").await;
    assert_eq!(server.ended().await, Some(0));
    drop(silent);
}
