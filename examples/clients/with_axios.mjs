// axios-retry: its default condition leaves POST alone. With a key a POST may be retried: after broken connections, and
// after answers that may pass. It waits for Retry-After.
import axios from 'axios';
import axiosRetry from 'axios-retry';

const [url, key] = process.argv.slice(2);
const passing = new Set([408, 425, 429, 500, 502, 503, 504]);
// A 409 is retried only while the request is in progress: other conflicts are final, or wait for somebody.
const isInProgress = ({ status, data }) => status === 409 && data?.code === 'request-in-progress';
const client = axios.create({ baseURL: url });
axiosRetry(client, {
  retries: 6,
  retryCondition: ({ response }) => !response || passing.has(response.status) || isInProgress(response),
  retryDelay: (count, error) => axiosRetry.exponentialDelay(count, error),
});
// The bytes are made once: every retry sends the same.
const body = JSON.stringify({ amountMinor: 250000, currency: 'VND' });
const headers = { 'Idempotency-Key': `"${key}"`, 'X-Api-Key': 'tenant-7', 'Content-Type': 'application/json' };
const answer = await client.post('/payments', body, { headers });
for (const [name, value] of Object.entries(answer.headers)) console.log(`${name}: ${value}`);
console.log(answer.status, JSON.stringify(answer.data));
