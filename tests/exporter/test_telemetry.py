from __future__ import annotations

import subprocess

import pytest
from prometheus_client import generate_latest

from kvwatch import __version__
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.model import FailureReason


@pytest.fixture
def telemetry():
    return Telemetry()


def value(telemetry, name, **labels):
    return telemetry.registry.get_sample_value(name, labels)


def failures(telemetry, target):
    return {
        reason: value(telemetry, "kvwatch_target_scrape_failures_total", target=target, reason=reason.value) for reason in FailureReason
    }


def test_every_reason_exists_at_zero_before_the_first_poll(telemetry):
    telemetry.target_added("vllm-0")
    assert failures(telemetry, "vllm-0") == dict.fromkeys(FailureReason, 0.0)
    assert value(telemetry, "kvwatch_target_scrapes_total", target="vllm-0") == 0.0
    assert value(telemetry, "kvwatch_tick_overruns_total", target="vllm-0") == 0.0


def test_a_failure_counts_as_a_scrape_and_under_its_reason_alone(telemetry):
    telemetry.target_added("vllm-0")
    telemetry.scrape_ended("vllm-0", None)
    telemetry.scrape_ended("vllm-0", FailureReason.TIMEOUT)
    assert value(telemetry, "kvwatch_target_scrapes_total", target="vllm-0") == 2.0
    assert failures(telemetry, "vllm-0") == dict.fromkeys(FailureReason, 0.0) | {FailureReason.TIMEOUT: 1.0}


def test_a_vanished_target_leaves_no_series_and_a_late_poll_brings_none_back(telemetry):
    telemetry.target_added("vllm-0")
    telemetry.target_added("vllm-1")
    telemetry.target_removed("vllm-0")
    telemetry.scrape_ended("vllm-0", FailureReason.TIMEOUT)
    telemetry.tick_overrun("vllm-0")
    text = generate_latest(telemetry.registry).decode()
    assert "vllm-0" not in text
    assert "vllm-1" in text


def test_removing_a_target_nobody_added_is_no_error(telemetry):
    telemetry.target_removed("vllm-9")
    assert "vllm-9" not in generate_latest(telemetry.registry).decode()


def test_adding_a_target_twice_keeps_its_counts(telemetry):
    telemetry.target_added("vllm-0")
    telemetry.tick_overrun("vllm-0")
    telemetry.target_added("vllm-0")
    assert value(telemetry, "kvwatch_tick_overruns_total", target="vllm-0") == 1.0


def test_a_failed_notification_counts_as_sent_and_as_failed(telemetry):
    telemetry.alertmanager_added("http://127.0.0.1:9093")
    assert value(telemetry, "kvwatch_alertmanager_notifications_failed_total", alertmanager="http://127.0.0.1:9093") == 0.0
    telemetry.notification_ended("http://127.0.0.1:9093", failed=False)
    telemetry.notification_ended("http://127.0.0.1:9093", failed=True)
    assert value(telemetry, "kvwatch_alertmanager_notifications_total", alertmanager="http://127.0.0.1:9093") == 2.0
    assert value(telemetry, "kvwatch_alertmanager_notifications_failed_total", alertmanager="http://127.0.0.1:9093") == 1.0


def test_the_build_says_its_version(telemetry):
    assert f'version="{__version__}"' in generate_latest(telemetry.registry).decode()


def test_process_python_and_gc_are_there_and_created_series_are_not(telemetry):
    telemetry.target_added("vllm-0")
    text = generate_latest(telemetry.registry).decode()
    assert "process_resident_memory_bytes" in text
    assert "python_info" in text
    assert "python_gc_objects_collected_total" in text
    assert "_created" not in text


def test_two_of_them_do_not_meet_in_a_global_registry():
    first, second = Telemetry(), Telemetry()
    first.target_added("vllm-0")
    assert value(second, "kvwatch_target_scrapes_total", target="vllm-0") is None


def test_promtool_finds_nothing_to_say_about_our_own_metrics(telemetry, require_tool):
    telemetry.target_added("vllm-0")
    telemetry.alertmanager_added("http://127.0.0.1:9093")
    checked = subprocess.run(
        [require_tool("promtool"), "check", "metrics"], input=generate_latest(telemetry.registry), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
