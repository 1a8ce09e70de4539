use test_servers::postgres;
use tokio_postgres::NoTls;

use super::*;

#[tokio::test]
async fn each_failure_of_the_server_has_a_kind_and_what_may_be_tried() {
    use StoreErrorKind::{Configuration, Contract, Corrupt, Unavailable};
    let (client, connection) = tokio_postgres::connect(&postgres().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    for (code, kind, cure) in [
        ("40001", Unavailable, Cure::Again),
        ("40P01", Unavailable, Cure::Again),
        ("55P03", Unavailable, Cure::Again),
        ("57014", Unavailable, Cure::Fresh),
        ("25006", Unavailable, Cure::Fresh),
        ("57P01", Unavailable, Cure::Fresh),
        ("57P03", Unavailable, Cure::Fresh),
        ("08006", Unavailable, Cure::Fresh),
        ("53100", Unavailable, Cure::None),
        ("53300", Unavailable, Cure::None),
        ("58030", Unavailable, Cure::None),
        ("0A000", Configuration, Cure::Fresh),
        ("26000", Configuration, Cure::None),
        ("42P05", Configuration, Cure::None),
        ("42P01", Configuration, Cure::None),
        ("3F000", Configuration, Cure::None),
        ("42501", Configuration, Cure::None),
        ("42703", Configuration, Cure::None),
        ("28000", Configuration, Cure::None),
        ("3D000", Configuration, Cure::None),
        ("25P02", Contract, Cure::None),
        ("XX001", Corrupt, Cure::None),
        ("22003", Corrupt, Cure::None),
        ("23514", Corrupt, Cure::None),
        ("P0001", Unavailable, Cure::None),
    ] {
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}', DETAIL = 'hunter2'; END $$");
        let error = client.batch_execute(&raise).await.unwrap_err();
        let judged = judge(&error);
        assert_eq!((judged.kind, judged.cure), (kind, cure), "{code}");
        let shown = postgres_error("claim", error).to_string();
        assert!(shown.contains(code) && !shown.contains("hunter2"), "{shown}");
    }
}
