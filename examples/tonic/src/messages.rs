//! What the calls carry, as `protoc` would have written it from:
//!
//! ```proto
//! message PayRequest { uint64 amount_minor = 1; string currency = 2; string cart = 3; }
//! message Payment { string charge = 1; uint64 amount_minor = 2; uint32 attempt = 3; }
//! message Line { string text = 1; }
//! ```

/// A payment that is asked for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PayRequest {
    /// In the currency's smallest unit.
    #[prost(uint64, tag = "1")]
    pub amount_minor: u64,
    /// ISO 4217.
    #[prost(string, tag = "2")]
    pub currency: String,
    /// What is paid for.
    #[prost(string, tag = "3")]
    pub cart: String,
}

/// A payment that was made.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Payment {
    /// The provider's name for it.
    #[prost(string, tag = "1")]
    pub charge: String,
    /// In the currency's smallest unit.
    #[prost(uint64, tag = "2")]
    pub amount_minor: u64,
    /// Which attempt made it.
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
}

/// A line of a receipt.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Line {
    /// What it says.
    #[prost(string, tag = "1")]
    pub text: String,
}
