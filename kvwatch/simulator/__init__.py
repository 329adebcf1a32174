"""A small discrete-event model of vLLM's V1 scheduler that serves ``/metrics``: the demo's server and the tests' fake.

It imports neither poller, classifier nor exporter; it only looks like a vLLM from outside. README.md beside this file says what is
modelled, names the parameters and compares runs with recordings of a real server.
"""

from __future__ import annotations
