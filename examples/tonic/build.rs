//! The service `shop.v1.Payments`, described here rather than in a `.proto` file, so that building needs no `protoc`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(input)
            .output_type(output)
            .codec_path("tonic_prost::ProstCodec")
    };
    let service = Service::builder()
        .name("Payments")
        .package("shop.v1")
        .method(method("pay", "Pay", "crate::messages::PayRequest", "crate::messages::Payment").build())
        .method(
            method("receipt", "Receipt", "crate::messages::PayRequest", "crate::messages::Line")
                .server_streaming()
                .build(),
        )
        .build();
    Builder::new().compile(&[service]);
}
