"""Stripe's SDK: retries broken connections, 409 and 5xx by itself, with the key that it was given (or made) for the first call
and the same body. It sends the key bare."""

import sys

import stripe

url, key = sys.argv[1:]
client = stripe.StripeClient("sk_test_none", base_addresses={"api": url}, max_network_retries=6)
answer = client.raw_request(
    "post",
    "/v2/payments",  # the path tells the SDK to send JSON
    idempotency_key=key,
    headers={"X-Api-Key": "tenant-7"},
    amountMinor=250000,
    currency="VND",
)
for name, value in answer.headers.items():
    print(f"{name}: {value}")
print(answer.code, answer.body)
