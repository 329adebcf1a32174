"""The wheel that is built holds everything kvwatch needs, and runs from an environment without the source."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pytest

import kvwatch


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    """Built as the Dockerfile builds it: without a network, with the pinned build tools."""
    folder = tmp_path_factory.mktemp("dist")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        folder,
        repository,
    ]
    subprocess.run(build, check=True, capture_output=True, text=True, timeout=120)
    (made,) = folder.glob("*.whl")
    return made


def test_it_carries_the_package_its_templates_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"kvwatch/exporter/web/templates/page.html.j2", "kvwatch/exporter/web/templates/style.css", "kvwatch/py.typed"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"kvwatch", f"kvwatch-{kvwatch.__version__}.dist-info"}


def test_installed_from_it_the_command_works(wheel, tmp_path):
    installed = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", installed, wheel]
    subprocess.run(install, check=True, capture_output=True, text=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(installed)}

    def run(*command):
        return subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60).stdout

    assert run(sys.executable, "-c", "import kvwatch; print(kvwatch.__file__)").startswith(str(installed))
    assert run(sys.executable, "-m", "kvwatch", "--version") == f"kvwatch {kvwatch.__version__}\n"
    page = "from kvwatch.exporter.web.page import CONTENT_SECURITY_POLICY as csp; print(csp[:11])"
    assert run(sys.executable, "-c", page) == "default-src\n"
