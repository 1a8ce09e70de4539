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
    let correlation_ids = "x-request-id x-requestid request-id x-correlation-id x-correlationid correlation-id \
        x-trace-id x-traceid trace-id x-session-id session-id client-request-id traceparent tracestate baggage b3 \
        X-B3-TraceId x-b3-spanid uber-trace-id sentry-trace elastic-apm-traceparent x-ot-span-context \
        x-client-trace-id X-Cloud-Trace-Context x-datadog-trace-id x-datadog-parent-id X-Amzn-Trace-Id \
        x-amzn-requestid x-amzn-request-id x-amz-request-id x-amz-cf-id x-ms-request-id x-ms-client-request-id \
        x-ms-correlation-request-id x-github-request-id x-vercel-id fly-request-id CF-Ray";
    for name in correlation_ids.split_whitespace() {
        let error = refused(builder().header(name));
        assert_eq!(error, ConfigError::CorrelationHeader { name: name.to_ascii_lowercase() });
    }
    for name in
        ["Idempotency-Key", "X-Idempotency-Key", "Idempotency-ID", "Repeatability-Request-ID", "PayPal-Request-Id"]
    {
        assert!(builder().header(name).build().is_ok(), "{name}");
    }
}

// case 115
#[test]
fn headers_that_mean_something_else_can_not_hold_keys() {
    let taken = "accept accept-language access-control-request-method Authorization content-type cookie date expect \
        forwarded from host if-match origin proxy-authorization referer sec-fetch-mode user-agent via x-api-key \
        x-forwarded-for idempotent-replayed idempotency-stored connection te transfer-encoding upgrade keep-alive";
    for name in taken.split_whitespace() {
        let error = refused(builder().header(name));
        assert_eq!(error, ConfigError::ReservedHeader { setting: "header", name: name.to_ascii_lowercase() });
    }
}

#[test]
fn the_mark_of_a_replay_can_not_take_the_place_of_a_header_that_means_something_else() {
    let taken = "age allow cache-control etag expires grpc-status last-modified link location Retry-After server trailer \
        vary access-control-allow-origin Content-Type set-cookie www-authenticate date x-request-id connection \
        content-length transfer-encoding Idempotency-Stored Idempotency-Key";
    for name in taken.split_whitespace() {
        let error = refused(builder().replay_header(name));
        assert_eq!(error, ConfigError::ReservedHeader { setting: "replay_header", name: name.into() });
    }
    for name in ["Idempotent-Replayed", "X-Replayed", "Original-Request"] {
        assert!(builder().replay_header(name).build().is_ok(), "{name}");
    }
}

#[test]
fn what_is_stored_can_not_be_what_is_not() {
    assert_eq!(refused(builder().store("Date").never_store("date")), ConfigError::StoredAndNot { name: "date".into() });
    for name in ["idempotent-replayed", "idempotency-stored", "content-length"] {
        let error = ConfigError::ReservedHeader { setting: "store", name: name.into() };
        assert_eq!(refused(builder().store(name)), error);
    }
}

#[test]
fn a_base_of_problem_types_can_begin_a_uri() {
    for character in ["\"", "<", ">", "\\", "^", "`", "{", "|", "}", " ", "\n", "\u{7f}", "é"] {
        let base = format!("urn:{character}:");
        assert_eq!(refused(builder().problem_base(&base)), ConfigError::ProblemBase { base });
    }
    for base in ["urn:example:", "https://errors.example/problems?lang=en#", "/problems/%C3%A9/~a!$&'()*+,;=:@[1]"] {
        assert!(builder().problem_base(base).build().is_ok(), "{base}");
    }
}

#[test]
fn problems_can_have_every_status_of_an_error_and_no_other() {
    for status in [400, 499, 500, 599] {
        let status = StatusCode::from_u16(status).unwrap();
        assert!(builder().problem_status(Code::KeyReused, status).build().is_ok(), "{status}");
    }
    for status in [100, 204, 302, 399, 600, 999] {
        let status = StatusCode::from_u16(status).unwrap();
        let error = refused(
            builder().problem_status(Code::KeyMissing, StatusCode::CONFLICT).problem_status(Code::KeyReused, status),
        );
        assert_eq!(error, ConfigError::Status { code: Code::KeyReused, status });
    }
}

#[test]
fn a_limit_of_one_byte_is_a_limit_and_each_way_has_its_own() {
    assert!(builder().max_request_bytes(1).max_response_bytes(1).build().is_ok());
    let limits = |told: Builder| (told.max_request, told.max_response);
    assert_eq!(limits(builder().max_request_bytes(7)), (7, DEFAULT_MAX_BYTES));
    assert_eq!(limits(builder().max_response_bytes(7)), (DEFAULT_MAX_BYTES, 7));
}

#[test]
fn what_is_shown_of_a_set_up_names_its_keys_and_not_their_secrets() {
    let told = builder().header("X-Key").fingerprint_key(FingerprintKey::new("2026", b"s3cr3t-s3cr3t-s3cr3t").unwrap());
    let shown = format!("{told:?}");
    assert!(shown.contains("header: \"X-Key\", is_required: true, methods: [POST, PATCH]"), "{shown}");
    let shown = format!("{:?}", told.build().unwrap());
    assert!(shown.contains("header: \"x-key\"") && shown.contains("2026"), "{shown}");
    assert!(!shown.contains("s3cr3t") && !shown.contains("115, 51, 99"), "{shown}");
}

#[test]
fn of_two_calls_for_one_setting_the_last_counts_and_lists_grow() {
    let key = |id| FingerprintKey::new(id, &[1; 16]).unwrap();
    let told = builder()
        .optional()
        .required()
        .fields(FieldSelector::new(&["/amount"]).unwrap())
        .raw_body()
        .expose_for_cors(true)
        .expose_for_cors(false)
        .methods([Method::PUT, Method::POST])
        .methods([Method::DELETE])
        .never_store("x-a")
        .never_store("x-b")
        .store("date")
        .store("ratelimit")
        .fingerprint_key(key("new"))
        .accept_fingerprint_key(key("old"))
        .accept_fingerprint_key(key("older"))
        .accept_unkeyed_fingerprints()
        .problem_status(Code::KeyMissing, StatusCode::FORBIDDEN)
        .problem_status(Code::KeyReused, StatusCode::CONFLICT);
    assert!(told.is_required && !told.expose_for_cors && matches!(told.fingerprints.rule, Rule::Raw));
    assert_eq!(told.methods, [Method::DELETE]);
    assert_eq!((told.never_stored.len(), told.stored.len()), (2, 2));
    let older: Vec<_> = told.fingerprints.older.iter().map(|key| key.as_ref().map(FingerprintKey::id)).collect();
    assert_eq!(older, [Some("old"), Some("older"), None]);
    let statuses = [Code::KeyMissing, Code::KeyReused].map(|code| told.style.status(code).as_u16());
    assert_eq!(statuses, [403, 409]);
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
        (builder().replay_header("Idempotency-Stored"), "replay_header: the header Idempotency-Stored already means"),
        (builder().replay_header("Connection"), "replay_header: the header Connection already means something else"),
        (builder().never_store("é"), "never_store: \"é\" can't be the name of a header"),
        (builder().store("\n"), "store: \"\\n\" can't be the name of a header"),
        (builder().store("Transfer-Encoding"), "store: the header transfer-encoding already means something else"),
        (builder().max_request_bytes(0), "max_request_bytes: it is zero and must be more"),
        (builder().max_response_bytes(0), "max_response_bytes: it is zero and must be more"),
        (builder().methods([]), "methods: there are none"),
        (builder().methods([Method::CONNECT]), "methods: CONNECT has no answer"),
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
        (
            builder()
                .fingerprint_key(key("b"))
                .accept_fingerprint_key(key("a"))
                .accept_fingerprint_key(key("c"))
                .accept_fingerprint_key(key("a")),
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
