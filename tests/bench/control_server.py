"""`prometheus_client`'s own server, to compare with: ``python control_server.py [CERTIFICATE KEY]`` serves 100 series on a free port."""

from __future__ import annotations

import sys
import threading

from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector, start_http_server

collectors = CollectorRegistry()
for collector in (ProcessCollector, PlatformCollector, GCCollector):
    collector(registry=collectors)
gauge = Gauge("control", "As many series as kvwatch has of one engine.", ["number"], registry=collectors)
for number in range(100):
    gauge.labels(str(number)).set(number)
certificate, key = sys.argv[1:] or (None, None)
server, _ = start_http_server(0, "127.0.0.1", collectors, certificate, key)
print(server.server_port, flush=True)  # noqa: T201 - read by who started it
threading.Event().wait()
