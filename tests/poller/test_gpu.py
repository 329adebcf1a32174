"""The DCGM exporter's numbers become one utilisation, of the right GPU."""

from __future__ import annotations

import pytest

from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason
from kvwatch.poller.gpu import busiest_gpu, scrape_gpu

TWO_GPUS = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",pci_bus_id="00000000:17:00.0",device="nvidia0",namespace="serving",pod="chat-0"} 1980
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa",device="nvidia0",container="vllm",namespace="serving",pod="chat-0"} 35
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-bb",device="nvidia1",container="vllm",namespace="serving",pod="chat-0"} 62
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-cc",device="nvidia2",container="",namespace="",pod=""} 97
# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-aa",namespace="serving",pod="chat-0"} 0.871
"""


@pytest.mark.parametrize(
    ("labels", "utilisation"),
    [
        pytest.param({}, 0.97, id="every GPU of the host"),
        pytest.param({"pod": "chat-0"}, 0.62, id="the busiest of the pod"),
        pytest.param({"pod": "chat-0", "gpu": "0"}, 0.35, id="one GPU"),
        pytest.param({"namespace": "serving", "pod": "chat-1"}, None, id="a pod without a GPU"),
        pytest.param({"node": "gpu-1"}, None, id="a label that is not there"),
    ],
)
def test_only_the_series_with_the_given_labels_count(labels, utilisation):
    assert busiest_gpu(TWO_GPUS.encode(), labels) == utilisation


def test_the_profiling_ratio_serves_where_utilisation_is_not_exported():
    body = "\n".join(line for line in TWO_GPUS.splitlines() if "GPU_UTIL" not in line) + "\n"
    assert busiest_gpu(body.encode(), {"pod": "chat-0"}) == 0.871


def test_idle_is_a_number_and_no_value_is_none():
    blank = 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 9223372036854775794\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} NaN\n'
    assert busiest_gpu(blank.encode(), {}) is None
    assert busiest_gpu(f'{blank}DCGM_FI_DEV_GPU_UTIL{{gpu="2"}} 0\n'.encode(), {}) == 0


def test_metrics_of_something_else_say_nothing_of_a_gpu():
    assert busiest_gpu(b'node_load1 0.4\nvllm:num_requests_running{engine="0"} 3\n', {}) is None


def test_it_asks_the_exporter_and_passes_its_failure_on():
    asked = []

    def answering(url: str) -> bytes:
        asked.append(url)
        return TWO_GPUS.encode()

    def refusing(url: str) -> bytes:
        raise ScrapeError(FailureReason.CONNECT, "connection refused")

    url = "http://127.0.0.1:9400/metrics"
    assert scrape_gpu(answering, url, {"gpu": "2"}) == 0.97
    assert asked == [url]
    with pytest.raises(ScrapeError, match="connection refused"):
        scrape_gpu(refusing, url, {})
    with pytest.raises(ScrapeError, match="HTML"):
        scrape_gpu(lambda _: b"<html>", url, {})
