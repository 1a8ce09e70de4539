use idem_memory::MemoryStore;

use super::*;

fn builder() -> Builder {
    let idempotency = Idempotency::builder(Arc::new(MemoryStore::new())).build().unwrap();
    IdempotencyLayer::builder(idempotency, |_| Some(Scope::global()))
}

fn refused(builder: Builder) -> ConfigError {
    builder.build().unwrap_err()
}

// case 115
#[test]
fn correlation_ids_can_not_be_keys() {
    for name in [
        "X-Request-Id",
        "Request-Id",
        "X-Correlation-ID",
        "X-Trace-Id",
        "traceparent",
        "X-Amzn-Trace-Id",
        "x-amzn-requestid",
        "X-B3-TraceId",
        "uber-trace-id",
        "X-Cloud-Trace-Context",
        "x-datadog-trace-id",
        "x-ms-client-request-id",
    ] {
        let name = name.to_ascii_lowercase();
        assert_eq!(refused(builder().header(&name)), ConfigError::CorrelationHeader { name });
    }
    for name in
        ["Idempotency-Key", "X-Idempotency-Key", "Idempotency-ID", "Repeatability-Request-ID", "PayPal-Request-Id"]
    {
        assert!(builder().header(name).build().is_ok(), "{name}");
    }
}

// case 121
#[test]
fn every_mistake_is_found_when_the_layer_is_built() {
    let key = |id| FingerprintKey::new(id, &[1; 16]).unwrap();
    let cases = [
        (builder().header("two words"), "header: \"two words\" can't be the name of a header"),
        (builder().header(""), "header: \"\" can't be the name of a header"),
        (builder().header("Authorization"), "header: the header authorization already means something else"),
        (builder().header("Content-Length"), "header: the header content-length already means something else"),
        (builder().replay_header("a:b"), "replay_header: \"a:b\" can't be the name of a header"),
        (builder().replay_header("Idempotency-Key"), "replay_header: the header Idempotency-Key already means"),
        (builder().never_store("é"), "never_store: \"é\" can't be the name of a header"),
        (builder().store("\n"), "store: \"\\n\" can't be the name of a header"),
        (builder().store("Transfer-Encoding"), "store: the header transfer-encoding already means something else"),
        (builder().max_request_bytes(0), "max_request_bytes: it is zero and must be more"),
        (builder().max_response_bytes(0), "max_response_bytes: it is zero and must be more"),
        (builder().methods([]), "methods: there are none"),
        (builder().methods([Method::POST, Method::CONNECT]), "methods: CONNECT has no answer"),
        (
            builder().problem_status(Code::KeyReused, StatusCode::OK),
            "problem_status: 200 OK for idempotency-key-reused",
        ),
        (
            builder().grpc().problem_status(Code::KeyReused, StatusCode::CONFLICT),
            "problem_status: problems of gRPC all have the status 200",
        ),
        (builder().problem_base(""), "problem_base: \"\" can't begin a URI"),
        (builder().problem_base("a b"), "problem_base: \"a b\" can't begin a URI"),
        (
            builder().fingerprint_key(key("a")).accept_fingerprint_key(key("a")),
            "accept_fingerprint_key: the key id \"a\" is used twice",
        ),
        (builder().accept_unkeyed_fingerprints(), "accept_fingerprint_key: the key id \"\" is used twice"),
        (
            builder().anonymous(Anonymous::BindToFingerprint).fingerprint_key(key("a")).accept_unkeyed_fingerprints(),
            "anonymous: BindToFingerprint finds no records of older fingerprint keys",
        ),
    ];
    for (builder, message) in cases {
        let error = refused(builder).to_string();
        assert!(error.starts_with(message), "{error}");
    }
}
