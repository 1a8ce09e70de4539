"""A network that loses what it must not, between a client and the payments service.

    python3 network.py SERVICE_URL

Prints `listening on URL`. The calls of one key fare like this:

    1  passed on; the connection to the client is closed while the service still works on it
    2  passed on: it meets the first one, and is told 409 with Retry-After
    3  answered with 503 and Retry-After, without being passed on
    4  passed on; its answer is lost
    5  passed on, and answered

GET /seen shows which keys came how often, and whether all calls of one key were the same to the byte.
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SERVICE = urllib.parse.urlsplit(sys.argv[1])
WORK_MS = "1500"  # how long the service takes for the first call
PASSED = ("idempotency-key", "content-type", "x-api-key")
seen = {}
lock = threading.Lock()


class Call(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        shown = {key: {"calls": len(calls), "same": len(set(calls)) == 1} for key, calls in seen.items()}
        self.answer(200, {"content-type": "application/json"}, json.dumps(shown).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        key = self.headers.get("idempotency-key", "")
        with lock:
            calls = seen.setdefault(key, [])
            calls.append(body)
            number = len(calls)
        if number == 1:
            threading.Thread(target=self.pass_on, args=(body, WORK_MS)).start()
            time.sleep(0.3)
            return self.lose()
        if number == 3:
            return self.answer(503, {"retry-after": "1"}, b"busy")
        answer = self.pass_on(body)
        if number == 4:
            return self.lose()
        self.answer(*answer)

    def pass_on(self, body, delay=None):
        service = http.client.HTTPConnection(SERVICE.hostname, SERVICE.port, timeout=30)
        headers = {name: self.headers[name] for name in PASSED if name in self.headers}
        if delay:
            headers["x-delay-ms"] = delay
        service.request("POST", "/payments", body, headers)
        answer = service.getresponse()
        headers = {name: value for name, value in answer.getheaders() if name != "content-length"}
        return answer.status, headers, answer.read()

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def lose(self):
        self.close_connection = True
        self.connection.shutdown(2)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Call)
print(f"listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
