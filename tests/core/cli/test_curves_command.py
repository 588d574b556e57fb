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
    return [curve(tmp_path, f"{side}{i}", 1 + i / 1e4) for side in "ab" for i in range(3)]


def test_equal_groups_end_with_0(sides, capsys):
    assert main(["curves", *sides[:3], "--against", *sides[3:]]) == 0
    text = capsys.readouterr().out
    assert text.startswith("within the margin: between -0.0") and "3 against 3" in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_has_every_figure(sides, tmp_path, capsys):
    far = [curve(tmp_path, f"far{i}", 1.05 + i / 1e4) for i in range(3)]
    assert main(["curves", *far, "--against", *sides[3:], "--margin", "0.5%", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["word"] == "beyond the margin" and found["margin"] == 0.005
    assert found["low"] < found["difference"] < found["high"] and found["difference"] == pytest.approx(0.05, rel=0.01)
    assert (found["runs"], found["against"], found["steps"]) == (3, 3, [51, 100])


def test_one_run_a_side_ends_with_4_and_says_what_is_missing(sides, capsys):
    assert main(["curves", sides[0], "--against", sides[3]]) == 4
    assert "at least 2 runs of each side" in " ".join(capsys.readouterr().out.split())


def test_a_file_without_a_curve_ends_with_2_and_is_named(sides, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert main(["curves", *sides, "--against", str(tmp_path / "notes.txt")]) == 2
    assert "notes.txt: found no loss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("margin", "message"), [("much", "such as 1%"), ("150%", "less than 100 %"), ("0", "more than")]
)
def test_a_margin_that_is_none_ends_with_2(margin, message, sides, capsys):
    with pytest.raises(SystemExit) as end:
        main(["curves", sides[0], "--against", sides[1], "--margin", margin])
    assert end.value.code == 2 and message in capsys.readouterr().err
