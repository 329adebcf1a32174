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


def test_everything_that_names_a_version_names_the_one_of_the_package(dockerfile, repository):
    """It is written in kvwatch/__init__.py; what cannot read it there is held to it here."""
    assert f"\nARG VERSION={kvwatch.__version__}\n" in dockerfile
    texts = {path: path.read_text() for path in (repository / "deploy").rglob("*") if path.suffix in {".yaml", ".md"}}
    pinned = re.compile(r"(?:image: kvwatch:|newTag: |^version: |^appVersion: )(\S+)", re.MULTILINE)
    named = {path.relative_to(repository).as_posix(): set(pinned.findall(text)) for path, text in texts.items() if pinned.search(text)}
    assert len(named) >= 6
    assert {path: versions for path, versions in named.items() if versions != {kvwatch.__version__}} == {}
    first = re.search(r"^## (\S+)", (repository / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert first == kvwatch.__version__


def test_a_tag_of_this_commit_is_the_version(repository):
    git = ["git", "-C", repository, "tag", "--points-at", "HEAD", "v*"]
    tags = subprocess.run(git, check=True, capture_output=True, text=True).stdout.split()
    assert set(tags) <= {f"v{kvwatch.__version__}"}


def test_the_image_says_what_it_is_in_the_words_of_the_open_container_initiative(dockerfile):
    labels = dict(re.findall(r'(org\.opencontainers\.image\.[a-z.]+)="([^"]*)"', dockerfile))
    said = {label.removeprefix("org.opencontainers.image."): value for label, value in labels.items()}
    assert set(said) == {"title", "description", "licenses", "version", "revision", "created", "base.name"}
    assert (said["licenses"], said["version"], said["revision"], said["created"]) == (
        "Apache-2.0",
        "${VERSION}",
        "${REVISION}",
        "${CREATED}",
    )


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
