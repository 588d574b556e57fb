"""`bisect`: what it refuses before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.cli.main import main
from plans import PLUGINS


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("HEAD", "no-such"), "nightly bisect: found 'no-such', expected a commit of this checkout"),
        (("HEAD", "HEAD"), "found no commits between them; expected a good commit before the bad one"),
    ],
)
def test_a_search_without_two_ends_is_refused(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--case", "tiny:fake:cpu", "--runs", str(tmp_path), "--plugins", str(PLUGINS))
    assert main(["nightly", "bisect", *words, *options]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
