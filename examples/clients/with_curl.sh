#!/usr/bin/env bash
# curl: --retry alone knows 408, 429 and 5xx; --retry-all-errors with --fail also broken connections and 409, and with them
# every other 4xx, since it can't tell them apart: --retry-max-time ends that. It waits for Retry-After. The key is made once,
# outside of the call.
set -euo pipefail
url=$1 key=$2
curl --silent --show-error --fail --retry 6 --retry-all-errors --retry-max-time 60 --include \
    --header "Idempotency-Key: \"$key\"" --header 'X-Api-Key: tenant-7' --header 'Content-Type: application/json' \
    --data '{"amountMinor":250000,"currency":"VND"}' "$url/payments"
