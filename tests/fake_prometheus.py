"""A Prometheus that holds samples of scrapes and answers the queries kvwatch asks."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SELECTOR = re.compile(r"(?P<name>\w+)?(?:\{(?P<matchers>.*)\})?\[(?P<window>\d+)ms\]")
MATCHER = re.compile(r'(\w+)=~?"((?:[^"\\]|\\.)*)"')


class FakePrometheus:
    """Holds samples of scrapes and answers the instant queries kvwatch asks, as Prometheus 2 does."""

    def __init__(self):
        self.url = ""
        self.series = {}
        self.queries = []

    def scraped(self, t, instance, text, job="vllm", **of_the_target):
        """Take in a scrape of a target with these labels; ``None`` is a failed one."""
        self._add(t, {"__name__": "up", "job": job, "instance": instance, **of_the_target}, "0" if text is None else "1")
        for line in (text or "").splitlines():
            found = SAMPLE.fullmatch(line)
            labels = {
                name: value.replace(r"\n", "\n").replace(r"\"", '"').replace("\\\\", "\\")
                for name, value in LABEL.findall(found["labels"] or "")
            }
            self._add(t, {"__name__": found["name"], "job": job, "instance": instance, **of_the_target, **labels}, found["value"])

    def _add(self, t, metric, value):
        self.series.setdefault(tuple(sorted(metric.items())), []).append([t, value])

    def answer(self, query, at):
        """The data of an instant query: a range selector, alone or inside ``group by (job, instance) (last_over_time(…))``."""
        self.queries.append(query)
        selector = SELECTOR.search(query)
        matchers = {name: re.compile(pattern.replace("\\\\", "\\")) for name, pattern in MATCHER.findall(selector["matchers"] or "")}
        if selector["name"]:
            matchers["__name__"] = re.compile(selector["name"])
        since = at - int(selector["window"]) / 1000
        result = []
        for key, samples in self.series.items():
            metric = dict(key)
            values = [sample for sample in samples if since <= sample[0] <= at]
            if values and all(pattern.fullmatch(metric.get(name, "")) for name, pattern in matchers.items()):
                result.append({"metric": metric, "values": values})
        if not query.startswith("group by (job, instance)"):
            return {"resultType": "matrix", "result": result}
        groups = {(series["metric"]["job"], series["metric"]["instance"]) for series in result}
        vector = [{"metric": {"job": job, "instance": instance}, "value": [at, "1"]} for job, instance in sorted(groups)]
        return {"resultType": "vector", "result": vector}


@contextlib.contextmanager
def fake_prometheus(tls=None):
    """One on HTTP, or on HTTPS with that context, with its `url`."""
    fake = FakePrometheus()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            data = fake.answer(asked["query"][0], float(asked["time"][0]))
            reply = json.dumps({"status": "success", "data": data}).encode()
            self.send_response(200 if self.path == "/prom/api/v1/query" else 404)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    fake.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}/prom/"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
