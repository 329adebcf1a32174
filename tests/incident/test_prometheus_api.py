"""How a Prometheus is asked, and what is made of the answers of those who speak its API."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from peers import answer, sends
from recordings_made import body, write

from kvwatch.commands import cli
from kvwatch.config.settings import Settings
from kvwatch.errors import PrometheusError, UsageError
from kvwatch.incident.prometheus import Prometheus
from kvwatch.incident.prometheus_api import PrometheusAccess, PrometheusApi
from kvwatch.incident.replay import coarse
from kvwatch.incident.selectors import matchers

NO_ANSWER = "HTTP status 200, and no answer of a Prometheus"
NONE = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


def api(peer, reply, access=None, said=None, *headers):
    """An API whose every answer is *reply*, a body or a pair of status line and body; what it complains of goes into *said*."""
    head, text = reply if isinstance(reply, tuple) else (b"HTTP/1.1 200 OK", reply)
    one = peer(sends(answer(text, head, *headers)))
    return one, PrometheusApi(
        one.url.removesuffix("/metrics"), access or PrometheusAccess(), said.append if said is not None else lambda _: None
    )


@pytest.mark.parametrize(
    ("selector", "inside"),
    [
        ('{pod="vllm-0"}', 'pod="vllm-0"'),
        ('pod="vllm-0"', 'pod="vllm-0"'),
        (' { pod = "a" , namespace =~ "llm-.*", zone!="b",x!~"c|d", } ', 'pod="a",namespace=~"llm-.*",zone!="b",x!~"c|d"'),
        ("{pod='a'}", "pod='a'"),
        (r'{pod="a\"},{b"}', r'pod="a\"},{b"'),
    ],
)
def test_a_selector_as_prometheus_writes_it(selector, inside):
    assert matchers(selector) == inside


@pytest.mark.parametrize(
    "selector",
    ["", "{}", "pod", "{pod}", "pod=vllm", '{pod="a"', '{pod="a"} or {b="c"}', '{pod="a" b="c"}', '{1pod="a"}', '{pod=="a"}',
     '{pod=~"("}', '{__name__="up"}', 'vllm:x{pod="a"}', '{pod="a}', "{,}", '{pod="a\n"}', 'sum({pod="a"})', '{pod="a"}[5m]'],
)  # fmt: skip
def test_a_selector_that_is_none_is_one_line(selector):
    with pytest.raises(UsageError) as raised:
        matchers(selector)
    assert str(raised.value).startswith("--match ")


class Questions(PrometheusApi):
    """An API that notes what it is asked; one target is known, and nothing of it."""

    def __init__(self):
        super().__init__("http://prometheus", PrometheusAccess())
        self.asked = []

    def query(self, query, at):
        assert at == 110.0
        self.asked.append(query)
        return [{"metric": {"job": "v", "instance": "a:1"}}]


def test_a_selector_stands_in_every_query():
    questions = Questions()
    assert list(Prometheus(questions, 'pod="vllm-0"').entries(100.0, 110.0)) == []
    assert len(questions.asked) == 4
    assert all(',pod="vllm-0"}[' in query for query in questions.asked)


@pytest.mark.parametrize(
    ("access", "header"),
    [
        pytest.param({"bearer_token_file": "s3cret\n"}, "Authorization: Bearer s3cret", id="bearer"),
        pytest.param(
            {"username": "me", "password_file": "s3cret\n"}, f"Authorization: Basic {base64.b64encode(b'me:s3cret').decode()}", id="basic"
        ),
        pytest.param({"headers": {"X-Scope-OrgID": "team-a"}}, "X-Scope-OrgID: team-a", id="tenant"),
    ],
)
def test_credentials_are_sent_and_the_netrc_is_not(peer, tmp_path, monkeypatch, access, header):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    given = {}
    for name, value in access.items():
        given[name] = value
        if name.endswith("_file"):
            given[name] = tmp_path / name
            given[name].write_text(value)
    one, asked = api(peer, NONE, PrometheusAccess(**given))
    assert asked.query("up", 1.0) == []
    assert header in one.requests[0]
    assert one.requests[0].count("Authorization") == header.count("Authorization")


def test_a_prometheus_with_a_certificate_is_trusted_by_its_ca_file_only(peer, tls, certificate, tmp_path):
    url = peer(sends(answer(NONE)), tls=tls).url.removesuffix("/metrics")
    assert PrometheusApi(url, PrometheusAccess(ca_file=certificate)).query("up", 1.0) == []
    missing = tmp_path / "no.pem"
    for access, fault in (
        (PrometheusAccess(), "self-signed certificate"),
        (PrometheusAccess(ca_file=missing), f"the CA file {missing} cannot be used: No such file or directory"),
    ):
        with pytest.raises(PrometheusError) as raised:
            PrometheusApi(url, access).query("up", 1.0)
        assert str(raised.value) == f"{url}: {fault}"


@pytest.mark.parametrize("token", ["", "two\nlines", "\udcff"])
def test_a_token_that_cannot_be_sent_is_never_quoted(peer, tmp_path, token):
    path = tmp_path / "token"
    path.write_bytes(token.encode("utf-8", "surrogateescape"))
    _, asked = api(peer, NONE, PrometheusAccess(bearer_token_file=path))
    with pytest.raises(PrometheusError, match="does not hold one token") as raised:
        asked.query("up", 1.0)
    assert not token or token not in str(raised.value)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        pytest.param((b"HTTP/1.1 401 Unauthorized", b"no org id\n"), "HTTP status 401: no org id", id="Mimir without a tenant"),
        pytest.param(
            (b"HTTP/1.1 422 Unprocessable Entity", b'{"status":"error","errorType":"422","error":"cannot execute: too many samples"}'),
            "cannot execute: too many samples",
            id="VictoriaMetrics",
        ),
        pytest.param(
            (b"HTTP/1.1 400 Bad Request", b'{"status":"error","errorType":"bad_data","error":"the query time range exceeds the limit"}'),
            "the query time range exceeds the limit",
            id="Mimir over a limit",
        ),
        pytest.param(
            (b"HTTP/1.1 503 Service Unavailable", b'{"status":"error","errorType":"unavailable","error":"no store\\nmatched"}'),
            "no store matched",
            id="Thanos",
        ),
        pytest.param((b"HTTP/1.1 404 Not Found", b"404 page not found\n"), "HTTP status 404: 404 page not found", id="wrong path"),
        pytest.param(b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', NO_ANSWER, id="scalar"),
        pytest.param(b'{"status":"success","data":null}', NO_ANSWER, id="no data"),
        pytest.param(b'{"status":"success","data":{"result":[{"metric":{},"values":[[1]]}]}}', NO_ANSWER, id="half a sample"),
        pytest.param(b'{"status":"success","data":{"result":[{"metric":{},"val', NO_ANSWER, id="cut"),
    ],
)  # fmt: skip
def test_an_error_is_told_in_their_words_in_one_line(peer, reply, fault):
    _, asked = api(peer, reply)
    with pytest.raises(PrometheusError) as raised:
        asked.query("up", 1.0)
    assert str(raised.value) == f"{asked.shown}: {fault}"


@pytest.mark.parametrize(
    ("extra", "warning"),
    [
        pytest.param(
            {"warnings": ["fetch series from store-1: timeout"]}, "fetch series from store-1: timeout", id="Thanos and Prometheus"
        ),
        pytest.param({"isPartial": True}, "the answer is partial: not every storage node answered", id="VictoriaMetrics"),
    ],
)
def test_a_partial_answer_is_used_and_said_once(peer, extra, warning):
    said = []
    _, asked = api(peer, json.dumps({"status": "success", "data": {"result": []}, **extra}).encode(), None, said)
    assert asked.query("up", 1.0) == asked.query("up", 2.0) == []
    assert said == [f"{asked.shown}: {warning}"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--match=pod"], '--match pod: write \'{pod="vllm-0"}\'; matchers are NAME="VALUE" with =, !=, =~ or !~'),
        (["--prometheus.header=X-Scope-OrgID"], "--prometheus.header: write 'NAME: VALUE'"),
        (["--prometheus.password-file=x"], "--prometheus.password-file needs --prometheus.username"),
        (["--prometheus.username=x", "--prometheus.bearer-token-file=x"], "give a bearer token or a user name, not both"),
        (["--prometheus.bearer-token-file=/nowhere/x"], "/nowhere/x: No such file or directory"),
        (["--start=1h", "--end=2h"], "--start must be before --end"),
        ([], "http://127.0.0.1:1: 127.0.0.1 port 1: Connection refused"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "snapshot"])
def test_a_mistake_is_one_line_exit_2_and_no_file(capsys, tmp_path, command, arguments, fault):
    made = ["--format=md", f"--export={tmp_path / 'e.jsonl'}"] if command == "replay" else []
    assert cli.main([command, "--prometheus=http://127.0.0.1:1", f"--output={tmp_path / 'out'}", *made, *arguments]) == 2
    assert capsys.readouterr() == ("", f"kvwatch: {fault}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.write_text('{"status": "success"}'), id="JSON of another tool"),
        pytest.param(lambda path: path.write_text(""), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"\x1f\x8bxx"), id="no gzip"),
        pytest.param(lambda path: path.mkdir(), id="a directory"),
        pytest.param(lambda path: write(path, (1.0, "not metrics")), id="no scrape of vLLM"),
        pytest.param(lambda path: path.write_text('{"kvwatch_recording": 99}\n'), id="of another version"),
        pytest.param(Path.exists, id="missing"),
    ],
)
@pytest.mark.parametrize("command", ["snapshot", "compare"])
def test_a_file_that_is_no_use_is_one_line_exit_2_and_no_file(capsys, tmp_path, command, make):
    path = tmp_path / "in.jsonl"
    make(path)
    arguments = [f"--output={tmp_path / 'out'}"] if command == "snapshot" else [str(path), str(path), f"--svg={tmp_path / 'out'}"]
    assert cli.main([command, str(path), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_export_replays_to_the_same(tmp_path, capsys):
    scrapes = [(100.0 + t, body(t)) if t != 30 else (130.0, None, "timeout: as recorded") for t in range(0, 60, 5)]
    path, exported = write(tmp_path / "in.jsonl", *scrapes), tmp_path / "out.jsonl.gz"
    assert cli.main(["replay", "--format=jsonl", str(path), f"--export={exported}"]) == 0
    first = capsys.readouterr().out
    assert cli.main(["replay", "--format=jsonl", str(exported)]) == 0
    assert capsys.readouterr().out == first
    assert first.count("\n") == 12


def test_an_export_that_goes_wrong_leaves_no_file(tmp_path, capsys):
    path = tmp_path / "in.jsonl.gz"
    write(path.with_suffix(""), (100.0, body(0)), (105.0, body(5)))
    packed = gzip.compress(path.with_suffix("").read_bytes())
    path.write_bytes(packed[:-6])
    assert cli.main(["replay", str(path), f"--export={tmp_path / 'out.jsonl'}"]) == 2
    assert "cut short or damaged" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_the_daemons_policy_judges_the_past(tmp_path, capsys):
    """Ten preemptions in a hundred: a storm by default, none where the operator allows more."""
    scrapes = [(100.0 + t, body(t, running=20.0, waiting=10.0, usage=0.99, preemptions=t * 0.5)) for t in range(0, 400, 5)]
    path = write(tmp_path / "in.jsonl", *scrapes)
    (tmp_path / "kvwatch.yml").write_text("thresholds: {storm_ratio: 0.9}\n")
    found = {}
    for name, flags in (
        ("default", []),
        ("flag", ["--thresholds.storm-ratio=0.9"]),
        ("file", [f"--config.file={tmp_path / 'kvwatch.yml'}"]),
    ):
        assert cli.main(["replay", "--format=jsonl", str(path), *flags]) == 0
        found[name] = {alert for line in capsys.readouterr().out.splitlines() for alert in json.loads(line)["alerts"]}
    assert "PreemptionStorm" in found["default"]
    assert "PreemptionStorm" not in found["flag"]
    assert found["file"] == found["flag"]


@pytest.mark.parametrize(
    ("spacing", "unseen"),
    [
        (15.0, "a queue or a full cache that comes and goes between two of them, or a stall shorter than that"),
        pytest.param(
            60.0,
            "a queue or a full cache that comes and goes between two of them, or a stall shorter than that, or the beginning or end "
            "of a storm more exactly than to two of them",
        ),
    ],
)  # fmt: skip
def test_scrapes_far_apart_say_what_they_do_not_show(spacing, unseen):
    assert coarse(spacing, Settings()) == f"scrapes are {spacing:g} s apart and do not show {unseen}"


def test_it_is_said_once_and_not_of_a_scrape_every_five_seconds(tmp_path, capsys):
    for step, times in ((5, 0), (15, 1), (60, 1)):
        path = write(tmp_path / f"{step}.jsonl", *((100.0 + t, body(t)) for t in range(0, 300, step)))
        assert cli.main(["replay", "--format=jsonl", str(path)]) == 0
        assert capsys.readouterr().err.count("apart and do not show") == times
