"""`curves` as a user calls it: files in, one word, figures and an exit code out."""

from __future__ import annotations

import json

import pytest
from levelfield.cli.main import main


def curve(folder, name, scale=1.0):
    path = folder / f"{name}.csv"
    rows = [f"{step},{scale * (2 + 8 / step)}" for step in range(1, 101)]
    path.write_text("step,loss\n" + "\n".join(rows))
    return str(path)


@pytest.fixture
def sides(tmp_path):
    return [
        curve(tmp_path, f"{side}{i}", 1 + (i + half) / 1e4) for side, half in (("a", 0), ("b", 0.5)) for i in range(3)
    ]


def test_equal_groups_end_with_0(sides, capsys):
    assert main(["align", "curves", *sides[:3], "--against", *sides[3:]]) == 0
    text = capsys.readouterr().out
    assert text.startswith("within the margin: between -0.0") and "3 against 3" in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_has_every_figure(sides, tmp_path, capsys):
    far = [curve(tmp_path, f"far{i}", 1.05 + i / 1e4) for i in range(3)]
    assert main(["align", "curves", *far, "--against", *sides[3:], "--margin", "0.5%", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["word"] == "beyond the margin" and found["margin"] == 0.005
    assert found["low"] < found["difference"] < found["high"] and found["difference"] == pytest.approx(0.05, rel=0.01)
    assert (found["runs"], found["against"], found["steps"]) == (3, 3, [51, 100])


def test_one_run_a_side_ends_with_4_and_says_what_is_missing(sides, capsys):
    assert main(["align", "curves", sides[0], "--against", sides[3]]) == 4
    assert "at least 2 runs of each side" in " ".join(capsys.readouterr().out.split())


def test_a_file_without_a_curve_ends_with_2_and_is_named(sides, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert main(["align", "curves", *sides, "--against", str(tmp_path / "notes.txt")]) == 2
    assert "notes.txt: found no loss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("margin", "message"), [("much", "such as 1%"), ("150%", "less than 100 %"), ("0", "more than")]
)
def test_a_margin_that_is_none_ends_with_2(margin, message, sides, capsys):
    with pytest.raises(SystemExit) as end:
        main(["align", "curves", sides[0], "--against", sides[1], "--margin", margin])
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_the_same_file_twice_is_one_run(sides, tmp_path, capsys):
    """Also under another name, as JSON with fewer digits, or cut short: its losses tell it."""
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"step": s, "loss": float(f"{2 + 8 / s:.6g}")}) for s in range(1, 91)))
    for again in (sides[0], str(other)):
        assert main(["align", "curves", sides[0], again, "--against", *sides[4:]]) == 4
        said = " ".join(capsys.readouterr().out.split())
        assert "at least 2 runs of each side" in said and "1 against 2" in said
        assert f"{again} has the curve of {sides[0]}: they count as one run" in said
    assert main(["align", "curves", str(other), *sides[:3], "--against", *sides[3:]]) == 0  # the whole one counts
    assert "3 against 3" in capsys.readouterr().out
    assert main(["align", "curves", sides[0], sides[0], "--against", *sides[4:], "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], len(found["repeated"])) == (1, 1)


def test_a_run_on_both_sides_ends_with_2(sides, capsys):
    assert main(["align", "curves", *sides[:3], "--against", sides[2], *sides[4:]]) == 2
    assert f"{sides[2]}, which stands on the other side" in " ".join(capsys.readouterr().err.split())


def bent(folder, name, seed):
    """A loss that is 3 % higher in the steps 51 to 75 only."""
    path = folder / f"{name}.csv"
    rows = [f"{s},{(1 + seed / 1e4) * (2 + 8 / s) * (1.03 if 50 < s <= 75 else 1)}" for s in range(1, 101)]
    path.write_text("step,loss\n" + "\n".join(rows))
    return str(path)


def test_a_chosen_tail_says_what_the_default_tail_says(sides, tmp_path, capsys):
    ours = [bent(tmp_path, f"bent{i}", i) for i in range(3)]
    asked = ["align", "curves", *ours, "--against", *sides[3:]]
    assert main(asked) == 4
    assert capsys.readouterr().out.startswith("beyond the margin")
    assert main([*asked, "--from-step", "76"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("within the margin") and max(map(len, said.splitlines())) <= 80
    assert "default beyond the margin: the default tail, steps 51 to 100" in " ".join(said.split())
    assert main([*asked, "--from-step", "76", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["default_tail"]["word"] == "beyond the margin"


def until(path, last, empty=()):
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
def test_a_broken_curve_ends_with_4_and_says_what_to_do(last, empty, step, message, sides, tmp_path, capsys):
    until(tmp_path / "b1.csv", last, empty)
    asked = ["align", "curves", *sides[:3], "--against", *sides[3:]]
    assert main(asked) == 4
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"broken curve: {sides[4]}: ") and message in said and f"--to-step {step}" in said
    assert main([*asked, "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["word"] == "broken curve" and found["difference"] is None
    assert main([*asked, "--to-step", str(step)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("within the margin") and f"default broken curve: the default tail, {sides[4]}: " in said


def test_a_last_step_before_the_first_ends_with_2(sides, capsys):
    assert main(["align", "curves", *sides[:3], "--against", *sides[3:], "--to-step", "0"]) == 2
    assert f"found {sides[0]} from step 1 on, expected a later --to-step" in " ".join(capsys.readouterr().err.split())


def test_a_file_of_every_second_step_is_compared(sides, tmp_path, capsys):
    for side in sides[3:]:
        path = tmp_path / side
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([head, *rows[1::2]]))
    assert main(["align", "curves", *sides[:3], "--against", *sides[3:]]) == 0, capsys.readouterr().out
