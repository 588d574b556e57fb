"""`compare` from the command line: sides from the store and from run directories, exit codes, formats."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from compared_records import record, repeats
from levelfield.cli.main import main
from levelfield.specs.layout import Layout
from levelfield.specs.record import RunRecord
from levelfield.store.database import Store

Compared = Callable[..., int]


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compared:
    """compared(records, words...): the exit code of `compare` with a store of these records."""
    monkeypatch.setenv("LEVELFIELD_RUNS", str(tmp_path / "no-runs"))
    monkeypatch.setenv("LEVELFIELD_STORE", f"sqlite:///{tmp_path / 'results.sqlite'}")

    def call(records: list[RunRecord], *words: str) -> int:
        with Store.open() as store:
            store.add(records)
        return main(["compare", *words])

    return call


TORCH = repeats(1000, 1010, 990)
PADDLE = repeats(400, 404, 396, first=10, framework="paddle")
BOTH = [*TORCH, *PADDLE]


def test_two_sides_from_the_store(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(BOTH, "*_torch", "*_paddle") == 0
    text = capsys.readouterr().out
    assert "B/A" in text and "0.4000" in text and "60.0 % lower" in text and max(map(len, text.splitlines())) <= 80
    assert main(["compare", "gpt:torch", "gpt:paddle", "--format", "markdown"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert ["tokens/s/device", "B/A", "0.4000"] in [row[:3] for row in rows]


def test_two_versions_of_a_framework_are_two_series_of_the_store(
    compared: Compared, capsys: pytest.CaptureFixture[str]
) -> None:
    older = repeats(1200, 1210, 1190, first=20, further_version="2.11.0", framework_version="2.11.0")
    assert compared([*TORCH, *older], "gpt:torch_2.11.0", "gpt:torch") == 0
    text = capsys.readouterr().out
    assert "gpt:torch_2.11.0:X1:1:1" in text and "0.8333" in text and "lower" in text
    with Store.open() as store:
        assert len(store.series()) == 2
    label = "gpt:torch_2.11.0:X1:1:1 smoke fp32 DP1TP1PP1 mb8"
    assert main(["nightly", "history", label, "--json"]) == 0
    assert [series["label"] for series in json.loads(capsys.readouterr().out)] == [label]


def test_a_chip_of_a_series_has_its_aliases(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    chips = {"H100": "H100-SXM5-80GB", "mi300x": "MI300X"}
    runs = [run for i, chip in enumerate(chips.values()) for run in repeats(1000, 1010, 990, first=10 * i, chip=chip)]
    assert compared(runs, "gpt:torch:H100", "gpt:torch:mi300x smoke") == 0
    text = capsys.readouterr().out
    assert all(f"gpt:torch:{chip}:1:1" in text for chip in chips.values())
    assert main(["compare", "gpt:torch:H200", "gpt:torch:H100"]) == 2
    assert "series 'gpt:torch:H200-SXM-141GB'" in " ".join(capsys.readouterr().err.split())


def test_json_is_one_object(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(BOTH, "*_torch", "*_paddle", "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["schema"] == "levelfield.comparison/1" and values["comparable"] is True
    assert values["figures"][0]["ratios"]["B"]["value"] == pytest.approx(0.4)


def test_sides_that_are_not_comparable_end_with_4(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    other = repeats(400, 404, 396, first=20, case="gpt2", work="sha256:" + "7" * 64)
    assert compared([*TORCH, *other], "*_gpt_torch", "*_gpt2_torch") == 4
    text = capsys.readouterr().out
    assert "NOT COMPARABLE" in text and "sha256:777777777777" in text and "B/A" not in text
    assert main(["compare", "*_gpt_torch", "*_gpt2_torch", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["comparable"] is False


def test_requirements_end_with_4_unless_all_are_met(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    speed, memory, mfu = "tokens_per_second>=0.5", "memory<=1.05", "mfu_megatron >= 1"
    assert compared(BOTH, "*_torch", "*_paddle", "--require", memory) == 0
    assert [memory, "B/A", "met"] in [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert main(["compare", "*_torch", "*_paddle", "--require", memory, "--require", speed]) == 4
    text = capsys.readouterr().out
    assert "missed" in text and "[0.3910, 0.4092]" in text and "undecided" not in text
    assert main(["compare", "*_torch", "*_paddle", "--require", memory, "--require", mfu, "--json"]) == 4
    requirements = json.loads(capsys.readouterr().out)["requirements"]
    assert [(r["requirement"], r["word"]) for r in requirements] == [(memory, "met"), (mfu, "undecided")]
    assert main(["compare", "*_torch", "*_paddle", "--json"]) == 0
    assert "requirements" not in json.loads(capsys.readouterr().out)


def test_one_run_a_side_takes_the_noise_from_the_store(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(BOTH, "T100001Z", "T100010Z") == 0
    assert "inconclusive" in capsys.readouterr().out
    nights = [f"2026-11-{day:02}T03:00:00+00:00" for day in range(1, 9)]
    older = [record(30 + i, 999.0 + i, began=began) for i, began in enumerate(nights)]
    older += [record(40 + i, 399.0 + i / 2, began=began, framework="paddle") for i, began in enumerate(nights)]
    assert compared(older, "T100001Z", "T100010Z") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "9 nights since" in text and nights[0][:10] in text and "lower" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["T100001Z"], "found 1 side, expected at least 2"),
        ([], "found no side"),
        (["nothing", "T100001Z"], "unknown run 'nothing'"),
        (["*_torch,*_paddle", "*_torch"], "expected runs of one series a side"),
        (["--matrix", "vendor", "T100001Z"], "a matrix takes the latest run"),
        (["T100001Z", "--case", "gpt"], "without --matrix"),
        (["--scaling", "*_torch"], "expected at least two numbers of devices"),
        (["--matrix", "vendor", "--case", "gpt3_6.7B", "--suite", "smoke"], "give one of them"),
        (["*_torch", "*_paddle", "--require", "speed>=1"], "found figure 'speed'"),
        (["--matrix", "vendor", "--require", "mfu>=1"], "found --require with --matrix"),
    ],
)
def test_wrong_usage_ends_with_2(
    compared: Compared, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert compared(BOTH, *words) == 2
    assert says in capsys.readouterr().err


def test_scaling(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    two = repeats(900, 905, 895, first=20, devices=2, layout=Layout(data=2))
    assert compared([*TORCH, *two], "--scaling", "*_torch") == 0
    text = capsys.readouterr().out
    assert "strong scaling" in text and "0.900" in text and "1.80" in text
    assert main(["compare", "--scaling", "*_torch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "levelfield.scaling/1"


def test_matrix(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    case = "gpt3_6.7B"
    runs = [record(1, case=case), record(2, 400.0, framework="paddle", case=case), record(3, case="gpt2_small")]
    assert compared(runs, "--matrix", "framework") == 0
    text = capsys.readouterr().out
    assert (
        "400.0 (inconclusive)" in text and "0.400" not in text and "not run" in text and re.search(r"\b1 of 2\b", text)
    )
    assert main(["compare", "--matrix", "framework", "--case", "GPT3-6.7B", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in values["rows"]] == ["gpt3_6.7B"]
    assert main(["compare", "--matrix", "framework", "--suite", "smoke"]) == 0
    assert "llama3_8b" in capsys.readouterr().out


def test_a_matrix_without_any_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEVELFIELD_STORE", "none")
    assert main(["compare", "--matrix", "vendor", "--runs", str(tmp_path)]) == 0
    assert "no run" in capsys.readouterr().out


PRICED = "schema: levelfield.prices/1\ncurrency: EUR\nchips:\n  H100: {per: device, rent: 3.6}\n"


def test_an_alias_is_a_price_of_its_chip_and_two_of_one_chip_are_refused(
    compared: Compared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, h100 = tmp_path / "prices.yaml", "H100-SXM5-80GB"
    file.write_text(PRICED)
    runs = repeats(1000, 1010, 990, chip=h100), repeats(400, 404, 396, first=10, framework="paddle", chip=h100)
    assert compared([*runs[0], *runs[1]], "*_torch", "*_paddle", "--prices", str(file)) == 0
    assert f"{h100}: rent" in (text := " ".join(capsys.readouterr().out.split())) and "3.6 EUR" in text
    file.write_text(f"{PRICED}  {h100}: {{per: device, rent: 2}}\n")
    assert main(["compare", "*_torch", "*_paddle", "--prices", str(file)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert str(file) in message and "'H100'" in message and f"'{h100}'" in message
