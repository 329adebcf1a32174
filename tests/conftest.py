"""What every test may ask for."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import structlog
from peers import Peer
from playwright.sync_api import sync_playwright

from kvwatch.clock import SystemClock

REPOSITORY: Final = Path(__file__).resolve().parent.parent
TOOLS: Final = REPOSITORY / ".cache" / "tools"
# Debian's name for it, where the package itself is installed.
ALIASES: Final = {"alertmanager": ("alertmanager", "prometheus-alertmanager")}

# Without the values of local variables, which take half a minute to draw; kvwatch itself logs none either.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--benchmarks``: measure, see tests/bench."""
    parser.addoption("--benchmarks", action="store_true", help="run the measurements of tests/bench")


def find_tool(name: str) -> Path | None:
    """The program of that name, from PATH or from `.cache/tools`; ``None`` where the machine lacks it."""
    for alias in ALIASES.get(name, (name,)):
        found = shutil.which(alias) or shutil.which(alias, path=str(TOOLS))
        if found:
            return Path(found)
    return None


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], Path]:
    """Path of a program a test cannot do without: a missing one skips the test, and fails it where CI=true."""

    def path_of(name: str) -> Path:
        found = find_tool(name)
        if found is not None:
            return found
        reason = f"{name} is neither on PATH nor in .cache/tools (tests/tools/fetch.sh puts Prometheus' tools there)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return path_of


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the working copy."""
    return REPOSITORY


@pytest.fixture(scope="session")
def browser(require_tool):
    """A real browser."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=require_tool("chromium"))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def axe(repository: Path) -> str:
    """The script of axe-core, which looks for what keeps people out of a page."""
    script = repository / ".cache" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        reason = "axe-core is not in .cache/axe (tests/tools/fetch_axe.sh puts it there)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return script.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def certificate(require_tool: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    file = tmp_path_factory.mktemp("tls") / "peer.pem"
    make_certificate(require_tool, file)
    return file


def make_certificate(require_tool: Callable[[str], Path], file: Path) -> None:
    """Write another one there."""
    only, subject = file.with_suffix(".crt"), ("-subj", "/CN=peer", "-addext", "subjectAltName=IP:127.0.0.1")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    subprocess.run(
        [require_tool("openssl"), "req", "-x509", *curve, *subject, "-keyout", file, "-out", only], check=True, capture_output=True
    )
    file.write_bytes(file.read_bytes() + only.read_bytes())


@pytest.fixture(scope="session")
def tls(certificate: Path) -> ssl.SSLContext:
    """What a server with that certificate needs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def peer():
    """Starts peers, stops them after the test."""
    with contextlib.ExitStack() as peers:

        def start(behave, **options):
            started = Peer(behave, **options)
            peers.callback(started.close)
            return started

        yield start


@pytest.fixture
def seconds():
    """Real seconds that a call took."""
    clock = SystemClock()

    def measure(call):
        begin = clock.monotonic()
        call()
        return clock.monotonic() - begin

    return measure
