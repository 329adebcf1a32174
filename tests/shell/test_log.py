"""The form of the log."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from kvwatch.config.settings import LogSettings
from kvwatch.daemon import logging as log


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def as_before():
    """Logging is the process's: give it back."""
    handlers, level, before = logging.root.handlers[:], logging.root.level, structlog.get_config()
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.configure(**before)


def logged(stream, **settings):
    log.configure(LogSettings(**settings), stream)
    return structlog.get_logger("test")


def test_elsewhere_than_on_a_terminal_an_event_is_a_line_of_json():
    stream = io.StringIO()
    logged(stream).warning("engine.state_changed", ratio=0.5, evidence=("12 wait", 'a "quote"\nand a line'))
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["ratio"]) == ("engine.state_changed", "warning", 0.5)
    assert event["evidence"] == ["12 wait", 'a "quote"\nand a line']
    assert event["timestamp"].endswith("Z")


def test_a_line_begins_with_when_how_bad_what_and_whose():
    stream = io.StringIO()
    logged(stream).info("engine.state_changed", state="kv_bound", engine="0", target="vllm", model_name="demo-8b")
    assert list(json.loads(stream.getvalue())) == ["timestamp", "level", "event", "target", "model_name", "engine", "state"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_json_is_null(number):
    stream = io.StringIO()
    logged(stream).info("x", seconds=number)
    assert json.loads(stream.getvalue())["seconds"] is None


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        pytest.param("x" * 4000, "x" * 4000, id="a-text-that-fits"),
        pytest.param("a" * 2000 + "z" * 5000, "a" * 1000 + " [3000 characters left out] " + "z" * 3000, id="a-text-too-long"),
        pytest.param(list(range(20)), list(range(20)), id="a-list-that-fits"),
        pytest.param(tuple(range(500)), [*range(20), "and 480 more"], id="a-list-too-long"),
        pytest.param(["y" * 4001], ["y" * 1000 + " [1 characters left out] " + "y" * 3000], id="a-text-in-a-list"),
    ],
)
def test_a_long_value_is_cut_and_says_so_so_that_the_line_stays_json(given, shown):
    stream = io.StringIO()
    logged(stream).info("x", detail=given)
    assert json.loads(stream.getvalue())["detail"] == shown


def test_a_traceback_without_end_keeps_its_error():
    stream = io.StringIO()

    def deeper(level):
        return deeper(level + 1)

    try:
        deeper(0)
    except RecursionError as error:
        error.add_note("n" * 20_000)
        error.add_note("the very last line")
        logged(stream).exception("scrape.broke")
    (line,) = stream.getvalue().splitlines()
    assert len(line) < 16_384
    assert json.loads(line)["exception"].endswith("the very last line")


def test_a_traceback_stays_in_its_line():
    stream = io.StringIO()
    try:
        int("broken")
    except ValueError:
        logged(stream).exception("scrape.broke")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: invalid literal" in json.loads(line)["exception"]


@pytest.mark.parametrize(
    ("stream", "form", "is_json"),
    [
        pytest.param(io.StringIO, "auto", True, id="auto-elsewhere"),
        pytest.param(Terminal, "auto", False, id="auto-on-a-terminal"),
        pytest.param(Terminal, "json", True, id="json-on-a-terminal"),
        pytest.param(io.StringIO, "console", False, id="console-elsewhere"),
    ],
)
def test_the_form_follows_the_terminal_unless_it_is_set(stream, form, is_json):
    out = stream()
    logged(out, format=form).info("kvwatch.started", url="http://x")
    assert out.getvalue().startswith("{") is is_json
    assert "kvwatch.started" in out.getvalue()


def test_a_level_hides_what_is_below_it():
    stream = io.StringIO()
    logger = logged(stream, level="warning")
    logger.info("hidden")
    logger.debug("hidden")
    logger.warning("shown")
    assert "hidden" not in stream.getvalue()
    assert "shown" in stream.getvalue()


def test_other_libraries_take_the_same_form_and_are_heard_from_warning_on():
    stream = io.StringIO()
    logged(stream, level="debug")
    logging.getLogger("asyncio").warning("retrying %s", "x")
    logging.getLogger("asyncio").info("hidden")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "retrying x"


@pytest.mark.parametrize("library", ["apscheduler.scheduler", "urllib3.connection"])
def test_what_kvwatch_says_itself_no_library_says_again(library):
    stream = io.StringIO()
    logged(stream, level="debug")
    logging.getLogger(library).error("failed", exc_info=ValueError("x"))
    assert stream.getvalue() == ""
