"""`curves` as a user calls it: files in, one word, figures and an exit code out."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pytest
from levelfield.cli.main import main

WITHIN, BEYOND = "within the margin", "beyond the margin"


def curve(folder: Path, name: str, scale: float = 1.0) -> str:
    path = folder / f"{name}.csv"
    rows = [f"{step},{scale * (2 + 8 / step)}" for step in range(1, 101)]
    path.write_text("step,loss\n" + "\n".join(rows))
    return str(path)


@pytest.fixture
def sides(tmp_path: Path) -> list[str]:
    return [
        curve(tmp_path, f"{side}{i}", 1 + (i + half) / 1e4) for side, half in (("a", 0), ("b", 0.5)) for i in range(3)
    ]


def test_equal_groups_end_with_0(sides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", "curves", *sides[:3], "--against", *sides[3:]]) == 0
    text = capsys.readouterr().out
    assert text.startswith("within ") and max(map(len, text.splitlines())) <= 80
    assert main(["align", "curves", *sides[:3], "--against", *sides[3:], "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["word"] == WITHIN and -0.001 < comparison["low"] < 0 < comparison["high"] < 0.001
    assert (comparison["runs"], comparison["against"]) == (3, 3)


def test_json_has_every_figure(sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    far = [curve(tmp_path, f"far{i}", 1.05 + i / 1e4) for i in range(3)]
    assert main(["align", "curves", *far, "--against", *sides[3:], "--margin", "0.5%", "--json"]) == 4
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["word"] == BEYOND and comparison["margin"] == 0.005
    assert comparison["low"] < comparison["difference"] < comparison["high"]
    assert comparison["difference"] == pytest.approx(0.05, rel=0.01)
    assert (comparison["runs"], comparison["against"], comparison["steps"]) == (3, 3, [51, 100])


def test_one_run_a_side_ends_with_4_and_says_what_is_missing(
    sides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", "curves", sides[0], "--against", sides[3]]) == 4
    assert " 2 runs " in " ".join(capsys.readouterr().out.split())


def test_a_file_without_a_curve_ends_with_2_and_is_named(
    sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert main(["align", "curves", *sides, "--against", str(tmp_path / "notes.txt")]) == 2
    assert f"{tmp_path / 'notes.txt'}: found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("margin", "message"), [("much", "such as 1%"), ("150%", "less than 100 %"), ("0", "more than")]
)
def test_a_margin_that_is_none_ends_with_2(
    margin: str, message: str, sides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["align", "curves", sides[0], "--against", sides[1], "--margin", margin])
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_the_same_file_twice_is_one_run(sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also under another name, as JSON with fewer digits, or cut short: its losses tell it."""
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"step": s, "loss": float(f"{2 + 8 / s:.6g}")}) for s in range(1, 91)))
    for again in (sides[0], str(other)):
        assert main(["align", "curves", sides[0], again, "--against", *sides[4:]]) == 4
        text = " ".join(capsys.readouterr().out.split())
        assert f"{again} has" in text and f" {sides[0]}:" in text
        assert main(["align", "curves", sides[0], again, "--against", *sides[4:], "--json"]) == 4
        comparison = json.loads(capsys.readouterr().out)
        assert (comparison["runs"], comparison["against"], len(comparison["repeated"])) == (1, 2, 1)
    arguments = ["align", "curves", str(other), *sides[:3], "--against", *sides[3:], "--json"]
    assert main(arguments) == 0  # the whole one counts
    comparison = json.loads(capsys.readouterr().out)
    assert (comparison["runs"], comparison["against"]) == (3, 3)


def test_a_run_on_both_sides_ends_with_2(sides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", "curves", *sides[:3], "--against", sides[2], *sides[4:]]) == 2
    assert f"{sides[2]}," in " ".join(capsys.readouterr().err.split())


def bent(folder: Path, name: str, seed: int) -> str:
    """A loss that is 3 % higher in the steps 51 to 75 only."""
    path = folder / f"{name}.csv"
    rows = [f"{s},{(1 + seed / 1e4) * (2 + 8 / s) * (1.03 if 50 < s <= 75 else 1)}" for s in range(1, 101)]
    path.write_text("step,loss\n" + "\n".join(rows))
    return str(path)


def test_a_chosen_tail_says_what_the_default_tail_says(
    sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [bent(tmp_path, f"bent{i}", i) for i in range(3)]
    arguments = ["align", "curves", *ours, "--against", *sides[3:]]
    assert main(arguments) == 4
    assert capsys.readouterr().out.startswith(BEYOND)
    assert main([*arguments, "--from-step", "76"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(WITHIN) and max(map(len, text.splitlines())) <= 80
    *_, default = " ".join(text.split()).partition(f"default {BEYOND}:")
    assert "51 to" in default and main([*arguments, "--from-step", "76", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["default_tail"]["word"] == BEYOND


def until(path: Path, last: int, empty: Collection[int] = ()) -> None:
    """Cut a table behind a step, and empty the cells of others."""
    lines = path.read_text().splitlines()[: last + 1]
    path.write_text("\n".join(line if i not in empty else f"{i}," for i, line in enumerate(lines)) + "\n")


@pytest.mark.parametrize(
    ("last", "empty", "step", "message"),
    [
        (100, range(61, 101), 60, "found no number as loss at step 61, expected a positive number"),
        (100, [50], 49, "found no number as loss at step 50"),
        (60, [], 60, "it ends at step 60, expected steps up to 100"),
    ],
)
def test_a_broken_curve_ends_with_4_and_says_what_to_do(
    last: int,
    empty: Collection[int],
    step: int,
    message: str,
    sides: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    until(tmp_path / "b1.csv", last, empty)
    arguments = ["align", "curves", *sides[:3], "--against", *sides[3:]]
    assert main(arguments) == 4
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(f"broken curve: {sides[4]}: ") and message in text and f"--to-step {step}" in text
    assert main([*arguments, "--json"]) == 4
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["word"] == "broken curve" and comparison["difference"] is None
    assert main([*arguments, "--to-step", str(step)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    *_, default = text.partition("default broken curve:")
    assert text.startswith(WITHIN) and f" {sides[4]}:" in default


def test_a_last_step_before_the_first_ends_with_2(sides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", "curves", *sides[:3], "--against", *sides[3:], "--to-step", "0"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert f"found {sides[0]}" in message and "step 1" in message and "--to-step" in message


def test_a_file_of_every_second_step_is_compared(
    sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in sides[3:]:
        path = tmp_path / side
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([head, *rows[1::2]]))
    assert main(["align", "curves", *sides[:3], "--against", *sides[3:]]) == 0, capsys.readouterr().out


def test_a_restart_within_a_log_is_said(sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def log(steps: range, scale: float) -> str:
        return "".join(f" iteration {step:4}/ 100 | lm loss: {scale * (2 + 8 / step):.6E} |\n" for step in steps)

    path = tmp_path / "a0.log"
    path.write_text(log(range(1, 81), 1) + log(range(71, 101), 1.0002))
    command = ["align", "curves", str(path), *sides[1:3], "--against", *sides[3:]]
    assert main(command) == 0
    assert "a restart repeats steps 71 to 80" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [
        f"{path}: a restart repeats steps 71 to 80: its lines count"
    ]
