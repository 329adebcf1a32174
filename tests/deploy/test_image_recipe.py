"""What can be said of the image without building it; tests/e2e/image_test.sh builds and runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvwatch


@pytest.fixture
def dockerfile(repository) -> str:
    return (repository / "Dockerfile").read_text()


def test_hadolint_has_nothing_to_say(repository):
    hadolint = Path(sys.executable).with_name("hadolint")  # a development requirement
    result = subprocess.run([hadolint, repository / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_the_image_carries_the_version_of_the_package(dockerfile, repository):
    assert f"\nARG VERSION={kvwatch.__version__}\n" in dockerfile
    for manifest in ("components/sidecar/sidecar.yaml", "standalone/deployment.yaml"):
        assert f"image: kvwatch:{kvwatch.__version__}\n" in (repository / "deploy/kubernetes" / manifest).read_text()
    assert f"image: kvwatch:{kvwatch.__version__}\n" in (repository / "deploy/compose/compose.yaml").read_text()


def test_everything_it_copies_is_let_through_and_nothing_else(dockerfile, repository):
    copied = {source for line in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE) for source in line.split()}
    rules = (repository / ".dockerignore").read_text().split("\n")
    let_through = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert let_through == copied
    assert "*" in rules
    assert all((repository / source).exists() for source in copied)


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-build.txt"])
def test_every_requirement_is_pinned_with_hashes(repository, name):
    text = (repository / name).read_text()
    requirements = re.split(r"\n(?=[a-z])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert len(requirements) > 4
    for requirement in requirements:
        assert re.match(r"[a-z0-9-]+==[^ ]+ ", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement
    assert "://" not in text


def test_it_runs_as_a_number_and_stops_on_the_signal_it_gets(dockerfile):
    last = dockerfile.rsplit("\nFROM ", 1)[1]
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["65532:65532"]
    assert '\nENTRYPOINT ["kvwatch"]\n' in last, "exec form: kvwatch itself gets SIGTERM"
    assert 'CMD ["python", "-m", "kvwatch.daemon.healthcheck"]' in last
