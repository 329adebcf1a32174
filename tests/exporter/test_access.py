"""TLS and basic authentication of the front, as Prometheus' exporters take them."""

from __future__ import annotations

import base64
import os
import threading

import bcrypt
import pytest

from kvwatch.config.web import WebSettings
from kvwatch.errors import ConfigError
from kvwatch.exporter.web import login
from kvwatch.exporter.web.access import Access
from kvwatch.exporter.web.login import with_login
from kvwatch.exporter.web.messages import HttpAnswer, HttpRequest

HASHED = bcrypt.hashpw(b"swordfish", bcrypt.gensalt(4)).decode()
GOOD = HttpAnswer(200, ())


def ask(app, path="/metrics", **credentials):
    headers = {"authorization": basic(**credentials)} if credentials else {}
    return app(HttpRequest("GET", path, headers=headers)).status


def basic(user, word):
    return "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()


@pytest.fixture
def app():
    return with_login(lambda _: GOOD, lambda: {"prometheus": HASHED})


def test_without_users_everybody_is_answered():
    assert ask(with_login(lambda _: GOOD, dict)) == 200


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("", id="nothing"),
        pytest.param("Bearer swordfish", id="token"),
        pytest.param("Basic !!!", id="no-base64"),
        pytest.param("Basic " + base64.b64encode(b"prometheus").decode(), id="no-colon"),
        pytest.param("Basic " + base64.b64encode(b"\xff:\xff").decode(), id="not-utf-8"),
        pytest.param(basic("prometheus", "herring"), id="wrong-password"),
        pytest.param(basic("somebody", "swordfish"), id="wrong-user"),
        pytest.param(basic("prometheus", "x" * 5000), id="longer-than-bcrypt-takes"),
        pytest.param(basic("prometheus", "sword\0fish"), id="zero-byte"),
    ],
)
def test_who_cannot_log_in_is_asked_to(app, header):
    answer = app(HttpRequest("GET", "/metrics", headers={"authorization": header}))
    assert answer.status == 401
    assert dict(answer.headers)["WWW-Authenticate"] == 'Basic realm="kvwatch"'


def test_the_right_password_is_let_in_and_then_remembered(app, monkeypatch):
    assert ask(app, user="prometheus", word="swordfish") == 200
    monkeypatch.setattr(login, "_matches", lambda *_: pytest.fail("hashed again"))
    assert ask(app, user="prometheus", word="swordfish") == 200


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
def test_probes_need_no_login(app, path):
    assert ask(app, path) == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/status", "/-/reload", "/-/healthy/"])
def test_everything_else_does(app, path):
    assert ask(app, path) == 401


def test_while_one_password_is_hashed_another_is_told_to_come_back_and_who_is_known_is_answered(app, monkeypatch):
    assert ask(app, user="prometheus", word="swordfish") == 200
    hashing, released = threading.Event(), threading.Event()

    def slow(*_):
        hashing.set()
        return released.wait(10.0) and False

    monkeypatch.setattr(login, "_matches", slow)
    guesser = threading.Thread(target=ask, args=(app,), kwargs={"user": "prometheus", "word": "a"})
    guesser.start()
    assert hashing.wait(10.0)
    try:
        assert ask(app, user="prometheus", word="b") == 429
        assert ask(app, user="prometheus", word="swordfish") == 200
    finally:
        released.set()
        guesser.join()


def access(tmp_path, text):
    file = tmp_path / "web.yml"
    file.write_text(text)
    return Access(WebSettings(config={"file": file}))


def test_users_are_read_and_read_again_when_the_file_changes(tmp_path):
    made = access(tmp_path, f"basic_auth_users:\n  prometheus: {HASHED}\n")
    assert made.context() is None
    assert dict(made.users) == {"prometheus": HASHED}
    (tmp_path / "web.yml").write_text("{}")
    os.utime(tmp_path / "web.yml", ns=(1, 1))
    made.context()
    assert dict(made.users) == {}


def test_a_file_that_breaks_leaves_what_it_said(tmp_path):
    made = access(tmp_path, f"basic_auth_users:\n  prometheus: {HASHED}\n")
    (tmp_path / "web.yml").write_text("basic_auth_users: [")
    os.utime(tmp_path / "web.yml", ns=(1, 1))
    made.context()
    assert dict(made.users) == {"prometheus": HASHED}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("basic_auth_users: {a: password}", "basic_auth_users.a: String should match", id="no-hash"),
        pytest.param("http_server_config: {http2: true}", "http_server_config: Extra inputs", id="unknown"),
        pytest.param("tls_server_config: {cert_file: a}", "tls_server_config.key_file: Field required", id="half"),
        pytest.param("tls_server_config: {cert_file: no.crt, key_file: no.key}", "No such file", id="missing"),
        pytest.param(
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}", "go together", id="no-authority"
        ),
        pytest.param("[", "did not find", id="no-yaml"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        access(tmp_path, text)
    (line,) = caught.value.errors
    assert said in line
    assert "\n" not in line
    assert "password" not in line.removeprefix(str(tmp_path))
