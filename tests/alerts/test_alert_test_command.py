"""``kvwatch alert-test`` without an Alertmanager that takes it; the real road is in tests/e2e."""

from __future__ import annotations

import pytest
from peers import free_port

from kvwatch.commands.cli import main


def test_without_an_alertmanager_it_says_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alert-test"]) == 2
    assert "--alertmanager.urls=URL" in capsys.readouterr().err


def test_one_that_does_not_answer_fails_the_drill_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["alert-test", "--alertmanager.urls", url]) == 1
    assert capsys.readouterr().out.startswith(f"{url}: failed: {url.removeprefix('http://').replace(':', ' port ')}: Connection refused")
