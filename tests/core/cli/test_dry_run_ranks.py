"""A dry run shows one rank in full, and of the others what is different."""

from __future__ import annotations

from collections import Counter

import pytest
from levelfield.cli.main import main
from plans import PLUGINS


def ranks(text: str) -> list[str]:
    """The lines from the first rank on."""
    lines = text.splitlines()
    return lines[next(n for n, line in enumerate(lines) if line.startswith("rank ")) :]


@pytest.mark.parametrize(
    ("devices", "said"), [(1, None), (2, "rank 1       as rank 0, but for"), (4, "ranks 1-3    as rank 0, but for")]
)
def test_other_ranks_show_what_is_different(
    devices: int, said: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "4")
    assert main(["--case", f"tiny:fake:fake:1:{devices}", "--plugins", str(PLUGINS), "--dry-run"]) == 0
    text = capsys.readouterr().out
    shown = ranks(text)
    assert sum(line.strip().startswith("WORLD_SIZE=") for line in shown) == 1 and (said is None or said in shown)
    assert sum(line.strip().startswith("RANK=") for line in shown) == (1 if said is None else 2)
    assert devices < 4 or "             RANK=1 ... 3" in shown
    names = [line.split()[0] for line in text.splitlines() if line[:1].strip()]
    assert names.count("environment") == names.count("variables") == 1


@pytest.mark.parametrize("case", ["llama3_8b:torch:A100:1:8", "gpt3_6.7B:paddle:A100:1:8", "gpt3_6.7B:torch:cpu:1:2"])
def test_no_two_rows_have_one_name(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Three rows were named `next best`."""
    assert main(["--case", case, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = Counter(line[:13].strip() for line in lines if line[:1].strip() and line[12:13] == " ")
    assert len(names) > 10 and [name for name, times in names.items() if times > 1] == []
