//! What a payment is, and which requests for one are valid.

use serde::{Deserialize, Serialize};

/// The longest cart id that is taken.
const MAX_CART_BYTES: usize = 255;

/// The longest name of a currency that is taken. Which currencies there are is the provider's to know.
const MAX_CURRENCY_BYTES: usize = 16;

/// Whose payment it is: the number behind `tenant-` of an API key, in its one decimal form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenant(String);

impl Tenant {
    /// Reads `tenant-<number>`. `tenant-07` is none: two spellings must not name one tenant.
    pub(crate) fn of_api_key(key: &[u8]) -> Option<Self> {
        let number = std::str::from_utf8(key).ok()?.strip_prefix("tenant-")?;
        let canonical = number.parse::<u64>().ok()?.to_string();
        (canonical == number).then_some(Self(canonical))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The body of `POST /payments`. Members that it does not know are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PaymentRequest {
    pub(crate) amount_minor: i64,
    pub(crate) currency: String,
    pub(crate) cart_id: Option<String>,
}

impl PaymentRequest {
    /// The members that make one request the same as another, as JSON Pointers.
    pub(crate) const FIELDS: [&str; 3] = ["/amountMinor", "/currency", "/cartId"];

    /// Reads a body, or says what is wrong with it.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        // An array of the members' values would be read as well.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err("the body is no payment: it must be a JSON object".into());
        }
        let request: Self = serde_json::from_slice(body).map_err(|error| format!("the body is no payment: {error}"))?;
        if request.amount_minor <= 0 {
            return Err("amountMinor must be above 0".into());
        }
        // Refused before money moves: no database of text takes every one of them.
        if [&request.currency].into_iter().chain(&request.cart_id).any(|text| text.contains(char::is_control)) {
            return Err("currency and cartId must have no control characters".into());
        }
        if !(1..=MAX_CURRENCY_BYTES).contains(&request.currency.len()) {
            return Err(format!("currency must have 1 to {MAX_CURRENCY_BYTES} bytes, such as VND"));
        }
        if request.cart_id.as_ref().is_some_and(|cart| cart.is_empty() || cart.len() > MAX_CART_BYTES) {
            return Err(format!("cartId must have 1 to {MAX_CART_BYTES} bytes where it is given"));
        }
        Ok(request)
    }
}

/// A payment that was made: the answer to `POST /payments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) charge_id: String,
    pub(crate) amount_minor: i64,
    pub(crate) status: String,
}

impl Payment {
    pub(crate) fn succeeded(id: u64, charge_id: &str, amount_minor: i64) -> Self {
        Self { id: id.to_string(), charge_id: charge_id.into(), amount_minor, status: "succeeded".into() }
    }
}

/// The answer to `GET /debug/totals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Totals {
    pub(crate) provider_calls: u64,
    pub(crate) distinct_charges: u64,
    pub(crate) payment_rows: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_key_names_a_tenant_in_one_spelling() {
        assert_eq!(Tenant::of_api_key(b"tenant-7").unwrap().as_str(), "7");
        assert_eq!(Tenant::of_api_key(b"tenant-0").unwrap().as_str(), "0");
        for key in ["", "7", "tenant-", "tenant-07", "tenant-+7", "tenant--7", "Tenant-7", "tenant-7 ", "tenant-x"] {
            assert_eq!(Tenant::of_api_key(key.as_bytes()), None, "{key:?}");
        }
        assert_eq!(Tenant::of_api_key(b"tenant-99999999999999999999999"), None);
        assert_eq!(Tenant::of_api_key(b"tenant-\xff"), None);
    }

    #[test]
    fn a_request_with_members_it_does_not_know_is_valid() {
        let request = PaymentRequest::parse(br#"{"amountMinor":250000,"currency":"VND","sentAt":1}"#).unwrap();
        assert_eq!(request, PaymentRequest { amount_minor: 250_000, currency: "VND".into(), cart_id: None });
        let with_cart = PaymentRequest::parse(br#"{"cartId":"c-1","currency":"VND","amountMinor":1}"#).unwrap();
        assert_eq!(with_cart.cart_id.as_deref(), Some("c-1"));
    }

    #[test]
    fn a_malformed_request_is_refused_with_what_is_wrong() {
        for (body, part) in [
            ("", "no payment"),
            ("{", "no payment"),
            ("[]", "no payment"),
            (r#"{"amountMinor":250000}"#, "currency"),
            (r#"{"currency":"VND"}"#, "amountMinor"),
            (r#"{"amountMinor":0,"currency":"VND"}"#, "above 0"),
            (r#"{"amountMinor":-1,"currency":"VND"}"#, "above 0"),
            (r#"{"amountMinor":1.5,"currency":"VND"}"#, "no payment"),
            (r#"{"amountMinor":"1","currency":"VND"}"#, "no payment"),
            (r#"{"amountMinor":9223372036854775808,"currency":"VND"}"#, "no payment"),
            (r#"{"amountMinor":1,"amountMinor":2,"currency":"VND"}"#, "duplicate"),
            (r#"[250000,"VND",null]"#, "JSON object"),
            (r#"{"amountMinor":1,"currency":""}"#, "currency"),
            (r#"{"amountMinor":1,"currency":"VND","cartId":""}"#, "cartId"),
            (r#"{"amountMinor":1,"currency":"V\u0000"}"#, "control characters"),
            (r#"{"amountMinor":1,"currency":"VND","cartId":"c\u0000"}"#, "control characters"),
            (r#"{"amountMinor":1,"currency":"VND"} x"#, "no payment"),
        ] {
            let problem = PaymentRequest::parse(body.as_bytes()).unwrap_err();
            assert!(problem.contains(part), "{body}: {problem}");
        }
    }
}
