from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace

import pytest
from exporter_views import VIEW, StillClock
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from kvwatch.alerts.registry import DEFINITIONS, ONLY_PROMETHEUS
from kvwatch.exporter.metrics.collector import ViewCollector
from kvwatch.exporter.web.messages import HttpRequest
from kvwatch.exporter.web.routes import Response, Sources, make_app
from kvwatch.exporter.web.runbook import runbook
from kvwatch.exporter.web.status import status_json


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


def page(query: str) -> Response:
    return Response(200, "text/html; charset=utf-8", f"<p>{query}</p>".encode(), content_security_policy="default-src 'self'")


def sources(**changed) -> Sources:
    clock = StillClock()
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: [VIEW], clock, fast_window=30.0, slow_window=120.0))
    given = {
        "registry": registry,
        "page": page,
        "status": lambda: status_json([VIEW], clock),
        "runbook": runbook,
        "healthy": lambda: True,
        "ready": lambda: True,
    }
    return Sources(**{**given, **changed})


def ask(path: str, *, method: str = "GET", given: Sources | None = None, **headers: str) -> Answered:
    path, _, query = path.partition("?")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = make_app(given or sources())(HttpRequest(method, path, query, named))
    return Answered(answer.status, dict(answer.headers), answer.body)


def test_metrics_are_plain_text_by_default():
    answer = ask("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b'kvwatch_target_up{target="vllm-0"} 1.0\n' in answer.body


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text;version=1.0.0"])
def test_a_fleet_is_encoded_in_pieces_that_together_are_what_the_library_makes_of_it_at_once(accept):
    """60 targets have more than 500 samples of a family, the most that are encoded at a time."""
    registry = CollectorRegistry()
    views = [replace(VIEW, name=f"vllm-{number}") for number in range(60)]
    registry.register(ViewCollector(lambda: views, StillClock(), fast_window=30.0, slow_window=120.0))
    encode, _ = choose_encoder(accept)
    at_once = encode(registry)
    assert at_once.count(b"\nkvwatch_cause{") > 500
    assert ask("/metrics", given=sources(registry=registry), accept=accept).body == at_once
    assert gzip.decompress(ask("/metrics", given=sources(registry=registry), accept=accept, accept_encoding="gzip").body) == at_once


def test_metrics_are_openmetrics_where_asked_for():
    answer = ask("/metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert answer.body.endswith(b"# EOF\n")
    assert "kvwatch_state" in {family.name for family in parse_openmetrics(answer.body.decode())}


def test_metrics_can_be_narrowed_by_name():
    answer = ask("/metrics?name[]=kvwatch_target_up")
    assert [line for line in answer.body.decode().splitlines() if not line.startswith("#")] == ['kvwatch_target_up{target="vllm-0"} 1.0']


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/status"])
def test_large_answers_are_compressed_where_asked_for(path):
    plain, packed = ask(path), ask(path, accept_encoding="gzip")
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["Content-Length"] == str(len(packed.body))


def test_small_answers_are_not_compressed():
    assert "Content-Encoding" not in ask("/-/healthy", accept_encoding="gzip").headers


@pytest.mark.parametrize(
    ("path", "given", "status", "body"),
    [
        pytest.param("/-/healthy", {}, 200, b"kvwatch is Healthy.\n", id="healthy"),
        pytest.param(
            "/-/healthy",
            {"healthy": lambda: False},
            503,
            b"kvwatch is not healthy: the polls have stopped.\n",
            id="ticks stopped",
        ),
        pytest.param("/-/ready", {}, 200, b"kvwatch is Ready.\n", id="ready"),
        pytest.param(
            "/-/ready",
            {"ready": lambda: False},
            503,
            b"kvwatch is not ready: not every target has been polled yet.\n",
            id="not ready",
        ),
    ],
)
def test_probes(path, given, status, body):
    answer = ask(path, given=sources(**given))
    assert (answer.status, answer.body) == (status, body)


def test_status_is_json():
    answer = ask("/api/v1/status")
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.body)["targets"][0]["name"] == "vllm-0"


def test_the_runbook_has_a_place_for_every_alert_and_no_markdown_left():
    answer = ask("/runbook")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    text = answer.body.decode()
    for alert in (*DEFINITIONS.values(), *ONLY_PROMETHEUS):
        assert f'<h2 id="{alert.prometheus_name}">{alert.prometheus_name}</h2>' in text
    assert "\n#" not in text
    assert "<table>" in text


def test_the_page_gets_the_query_and_keeps_its_own_policy():
    answer = ask("/?sort=state")
    assert answer.body == b"<p>sort=state</p>"
    assert answer.headers["Content-Security-Policy"] == "default-src 'self'"


@pytest.mark.parametrize(
    "path", ["/favicon.ico", "/metrics/", "//", "/api/v1", "*", "[", "http://[::1", "%2e%2e/metrics", "/../etc/passwd", "/METRICS"]
)
def test_everything_else_is_not_found(path):
    assert ask(path).status == 404


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/status"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_get_and_head_are_allowed(path, method):
    answer = ask(path, method=method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/status", "/nowhere"])
def test_head_is_get_without_the_body(path):
    get, head = ask(path), ask(path, method="HEAD")
    assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/api/v1/status", "/nowhere"])
def test_every_answer_carries_the_security_headers(path):
    headers = ask(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Content-Security-Policy"].startswith("default-src")
    if path != "/":
        assert headers["Content-Security-Policy"] == "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def test_a_large_answer_arrives_whole():
    large = b"0123456789" * 30_000
    assert ask("/api/v1/status", given=sources(status=lambda: large)).body == large


def test_a_source_that_fails_is_answered_with_500_and_not_with_its_secrets():
    def failing() -> bytes:
        raise RuntimeError("the password is swordfish")

    answer = ask("/api/v1/status", given=sources(status=failing))
    assert answer.status == 500
    assert b"swordfish" not in answer.body


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=abc", "a;version=", ";;;", "application/openmetrics-text;version=9", "\xff"]
)
def test_a_wish_nobody_understands_gets_a_format_all_the_same(accept):
    assert ask("/metrics", accept=accept).status == 200


@pytest.mark.parametrize("query", ["name[]=" + "&name[]=x" * 2000, "%", "name[]=%ff", "&&&=", "name[]=kvwatch_state&name[]=\0"])
def test_a_query_nobody_understands_is_no_fault(query):
    assert ask(f"/metrics?{query}").status == 200


def test_reloading_over_http_is_off_until_enabled():
    answer = ask("/-/reload", method="POST")
    assert answer.status == 403
    assert b"--web.enable-lifecycle" in answer.body


@pytest.mark.parametrize(
    ("errors", "status", "body"), [([], 200, b""), (["targets: it is missing"], 500, b"kvwatch: targets: it is missing\n")]
)
def test_reloading_says_what_came_of_it(errors, status, body):
    answer = ask("/-/reload", method="POST", given=sources(reload=lambda: errors))
    assert (answer.status, answer.body) == (status, body)


def test_reloading_is_not_for_a_reader():
    answer = ask("/-/reload", given=sources(reload=list))
    assert (answer.status, answer.headers["Allow"]) == (405, "POST, PUT")
