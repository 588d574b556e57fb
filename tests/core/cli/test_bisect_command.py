"""`bisect`: what it refuses before anything is built."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.cli.main import main
from plans import PLUGINS

VERSIONS = """\
reaches: {cpu: {device: cpu, backend: gloo}}
versions:
  "2.0.0":
    requirements:
      cpu: {packages: [fake-tensors==2.0.0], verified: none}
"""


@pytest.fixture
def bisect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """bisect(case, words...): the exit code and the error, with a framework `fake` that has a further version."""
    shutil.copytree(PLUGINS, tmp_path / "plugins")
    with (tmp_path / "plugins/models/fake/implementation.yaml").open("a") as manifest:
        manifest.write(VERSIONS)

    def call(case: str, *words: str) -> tuple[int, str]:
        given = ("--case", case, "--runs", str(tmp_path / "runs"), "--plugins", str(tmp_path / "plugins"))
        return main(["nightly", "bisect", *words, *given]), capsys.readouterr().err

    return call


def test_packages_are_bisected_through_the_default_version(bisect: Callable[..., tuple[int, str]]) -> None:
    code, said = bisect("tiny:fake_2.0.0:cpu", "--package", "numpy", "--versions", "2.4.5", "2.4.6")
    assert code == 2 and "found fake_2.0.0, whose pins stay; expected fake, the default version" in " ".join(
        said.split()
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--package", "numpy", "--versions", "2.4.6"), "found no two --versions"),
        (("main", "main", "--package", "numpy", "--versions", "1", "2"), "or also commits"),
        (("main",), "found 1 commits, expected two"),
        (("HEAD", "no-such"), "nightly bisect: found 'no-such', expected a commit of this checkout"),
        (("HEAD", "HEAD"), "found no commits between them; expected a good commit before the bad one"),
    ],
)
def test_a_search_without_two_ends_is_refused(
    bisect: Callable[..., tuple[int, str]], words: tuple[str, ...], says: str
) -> None:
    code, said = bisect("tiny:fake:cpu", *words)
    assert code == 2 and says in " ".join(said.split())
