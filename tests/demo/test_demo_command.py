from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from kvwatch.demo.acts import SCENARIOS


@pytest.fixture
def demo():
    """The command, playing fast; ended by its own handle."""
    command = [sys.executable, "-m", "kvwatch", "demo", "--scenario", "storm", "--speed", "20", "--web.listen-address", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_it_tells_acts_and_serves_the_status_page_until_interrupted(demo):
    url = re.fullmatch(r"status page: (http://127\.0\.0\.1:\d+)\n", demo.stdout.readline())[1]
    assert demo.stdout.readline().startswith("A quiet morning: ")
    with urllib.request.urlopen(f"{url}/api/v1/status", timeout=60) as answer:
        assert [target["name"] for target in json.load(answer)["targets"]] == ["simulated-vllm"]
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert b"simulated-vllm" in answer.read()
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (0, ""), out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--speed", "0"], "'0' is not a speed between 0 and 60"),
        (["--scenario", "nonsense"], "invalid choice: 'nonsense'"),
        (["--web.listen-address", "nowhere"], "nowhere: not a listen address"),
    ],
)
def test_bad_arguments_are_refused_with_exit_code_2(arguments, complaint):
    done = subprocess.run([sys.executable, "-m", "kvwatch", "demo", *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, complaint in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_two_demos_at_once_have_a_page_each_and_end_with_what_to_do_next():
    command = [sys.executable, "-m", "kvwatch", "demo", "--scenario", "slots", "--speed", "60"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other,
    ):
        said = [process.communicate(timeout=300) for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), said
    assert len({out.splitlines()[0] for out, _ in said}) == 2
    for out, _ in said:
        ending = out.split("That was a simulated server. With one of yours:\n")[1]
        assert "kvwatch check HOST:8000 " in ending
        assert ending.splitlines()[-1].split(", ")[0].strip() == "story"
        assert set(ending.splitlines()[-1].strip().split(", ")) == set(SCENARIOS) - {"slots"}
