"""urllib3: by default its Retry leaves POST alone. With a key a POST may be retried: name it in allowed_methods, and the
answers that may pass in status_forcelist. It can't tell one 409 from another, so total bounds how often it asks where that
will not help. It waits for Retry-After."""

import json
import sys

import urllib3

url, key = sys.argv[1:]
retries = urllib3.Retry(
    total=6,
    backoff_factor=0.2,
    allowed_methods={"POST"},
    status_forcelist={408, 409, 425, 429, 500, 502, 503, 504},
    respect_retry_after_header=True,
)
# The bytes are made once: every retry sends the same.
body = json.dumps({"amountMinor": 250000, "currency": "VND"}).encode()
headers = {"Idempotency-Key": f'"{key}"', "X-Api-Key": "tenant-7", "Content-Type": "application/json"}
answer = urllib3.PoolManager(retries=retries).request("POST", f"{url}/payments", body=body, headers=headers)
for name, value in answer.headers.items():
    print(f"{name}: {value}")
print(answer.status, answer.data.decode())
