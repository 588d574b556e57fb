"""Withheld cells: nothing of them in any format, and no choice that gives them away."""

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.errors import UnknownName, UsageError
from levelfield.judge.collector import collect
from levelfield.publish.withholding import (
    _CSV_NAMES,
    _UTILISATION,
    FIELDS,
    FILES,
    LEFT_OUT,
    PUBLISHED,
    STAYS_OF_CSV,
    STAYS_OF_UTILISATION,
    WORD,
    Withheld,
    hidden,
    parse_fields,
    published,
    published_id,
    refuse_leaks,
    without,
)
from levelfield.report.tables import plain
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump
from levelfield.specs.chips import OverlayUsed
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result, Status, Utilisation
from levelfield.specs.vendor import Peak
from recorded_runs import rename, seal_again

Fields = tuple[Withheld, ...]
SUBSETS = [c for n in range(1, len(FIELDS) + 1) for c in itertools.combinations(FIELDS, n)]


@pytest.fixture
def valid(run: RunPaths) -> Result:
    return collect(run)


@pytest.fixture
def plan(run: RunPaths) -> Plan:
    """Of a run whose peak was measured, so nobody's knowledge."""
    return read_plan(run)


def with_peak(plan: Plan, overlay: OverlayUsed | None = None) -> Plan:
    """The plan on a chip that has a peak of the run's dtype: vendor.yaml's, or a private one."""
    chip = plan.hardware.chip.model_copy(update={"peaks": {"fp32": Peak(tflops=2.0, source="a datasheet")}})
    hardware = plan.hardware.model_copy(update={"chip": chip, "overlay": overlay})
    return plan.model_copy(update={"hardware": hardware})


PRIVATE = OverlayUsed(file="chips.yaml", digest="sha256:" + "0" * 64, fields=("peaks.fp32",))


# -- which choices give themselves away

World = dict[str, tuple[float, ...]]


def worlds(peak_is_known: bool) -> list[World]:
    """What the cells would say for every rate, peak, power and memory of 1 or 2, from their definitions alone."""
    peaks = (1,) if peak_is_known else (1, 2)
    return [
        {"mfu": (r / p,), "peak": (p,), "throughput": (r,), "energy": (w / r, w), "memory": (m,)}
        for r, p, w, m in itertools.product((1, 2), peaks, (1, 2), (1, 2))
    ]


def gives_away(fields: Fields, peak_is_known: bool) -> bool:
    """Whether some withheld cell is the same in every world in which all published cells are."""
    base, *others = worlds(peak_is_known)
    alike = [w for w in others if all(w[f] == base[f] for f in FIELDS if f not in fields)]
    return not all(any(w[field] != base[field] for w in alike) for field in fields)


def refused(plan: Plan, result: Result, fields: Fields) -> bool:
    try:
        refuse_leaks(plan, result, fields)
    except UsageError:
        return True
    return False


@pytest.mark.parametrize("fields", SUBSETS, ids="+".join)
def test_a_choice_is_refused_exactly_when_it_gives_itself_away(plan: Plan, valid: Result, fields: Fields) -> None:
    assert refused(plan, valid, fields) == gives_away(fields, peak_is_known=False)
    assert refused(with_peak(plan, PRIVATE), valid, fields) == gives_away(fields, peak_is_known=False)
    assert refused(with_peak(plan), valid, fields) == gives_away(fields, peak_is_known=True)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (("peak",), "the peak follows from MFU, tokens/s and the FLOPs per token of the case; withhold mfu or through"),
        (("mfu",), "MFU follows from the peak, tokens/s and the FLOPs per token of the case; withhold peak or through"),
        (("mfu", "peak", "throughput"), "tokens/s follows from the energy; withhold energy too"),
    ],
)
def test_a_leak_is_named_with_what_to_add(plan: Plan, valid: Result, fields: Fields, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_leaks(plan, valid, fields)
    assert says in str(caught.value) and f"--withhold {','.join(fields)}: {plan.run_id} on F1" in str(caught.value)


def test_a_peak_that_everybody_can_look_up_is_not_withheld(plan: Plan, valid: Result) -> None:
    with pytest.raises(UsageError, match=r"the peak is already public: fp32 \(a datasheet\) is in the vendor's file"):
        refuse_leaks(with_peak(plan), valid, ("mfu", "peak"))
    with pytest.raises(UsageError, match=r"MFU follows from the peak \(public\), tokens/s .*; withhold throughput too"):
        refuse_leaks(with_peak(plan), valid, ("mfu",))


def without_figures(result: Result, *names: Withheld) -> Result:
    """The result of a run that lacks these figures, as without a tool for power or a peak of the chip."""
    row = result.model_dump(mode="json")
    if "energy" in names:
        for figure in ("joules", "joules_per_token", "mean_watts"):
            row["energy"][figure].update(value=None, reason="no tool")
    if "mfu" in names:
        for found in row["utilisation"]:
            found.update(value=None, low=None, high=None, peak_tflops=None)
    return Result.model_validate(row)


def test_a_figure_that_the_run_lacks_gives_nothing_away(plan: Plan, valid: Result) -> None:
    """Each was refused before: null energy asked for `energy` to be withheld too."""
    no_energy, no_peak = without_figures(valid, "energy"), without_figures(valid, "mfu")
    assert refused(plan, valid, ("throughput", "mfu")) and not refused(plan, no_energy, ("throughput", "mfu"))
    assert refused(plan, no_energy, ("throughput",)), "from MFU and the peak"
    assert refused(plan, no_peak, ("throughput",)), "from the energy"
    assert not refused(plan, without_figures(valid, "energy", "mfu"), ("throughput",))
    assert refused(plan, valid, ("peak",)) and not refused(plan, no_peak, ("peak",))


def test_of_mixed_fp8_one_public_peak_gives_half_of_the_range_away(plan: Plan, valid: Result) -> None:
    training = plan.work.training.model_copy(update={"precision": "fp8"})
    fp8 = plan.model_copy(update={"work": plan.work.model_copy(update={"training": training})})
    peaks = {"bf16": Peak(tflops=1, source="a datasheet"), "fp8": Peak(tflops=2, source="private")}
    hardware = fp8.hardware.model_copy(
        update={
            "chip": fp8.hardware.chip.model_copy(update={"peaks": peaks}),
            "overlay": PRIVATE.model_copy(update={"fields": ("peaks.fp8",)}),
        }
    )
    mixed = fp8.model_copy(update={"hardware": hardware})
    assert refused(mixed, valid, ("mfu", "peak")) and not refused(mixed, valid, ("mfu", "throughput", "energy"))


# -- nothing of them in any format


def other_peak(run: RunPaths) -> Result:
    plan = read_plan(run)
    run.plan.write_text(dump(plan.model_copy(update={"peak": plan.peak.model_copy(update={"tflops": 3.125})})))
    seal_again(run)
    return collect(run)


def other_speed(result: Result) -> Result:
    """As if every step had taken another time: tokens/s, and with it MFU, FLOP/s and energy."""
    assert result.throughput
    faster = result.throughput.model_dump()
    faster.update(tokens_per_second=777.0, tokens_per_second_per_device=388.5)
    faster["step_seconds"].update(median=0.0823, flags=("a trend of 0.0823 s",))
    used = [u.model_dump() | {"value": 0.777, "achieved_tflops": 0.777, "reason": "0.777"} for u in result.utilisation]
    energy = result.energy.model_dump()
    for name in ("joules", "joules_per_token", "mean_watts"):
        energy[name]["value"] = 0.777
    changed = {"throughput": faster, "utilisation": used, "energy": energy}
    return Result.model_validate(result.model_dump() | changed)


def other_memory(result: Result) -> Result:
    memory = result.memory.model_dump()
    for name in ("device_used_peak", "allocated_peak", "reserved_peak", "process_peak"):
        memory[name].update(value=123456789, reason="123456789")
    figure = {"value": 123456789, "unit": "B", "reason": None}
    memory["expectation"] = {"figure": "process peak", "measured": figure, "ratio": 1.23, "remark": "1.23 times"}
    return Result.model_validate(result.model_dump() | {"memory": memory})


def test_runs_that_differ_in_their_peak_only_are_published_alike(run: RunPaths, valid: Result) -> None:
    other = other_peak(run)
    assert published([valid], ()) != published([other], ())
    assert published([valid], ("mfu", "peak")) == published([other], ("mfu", "peak"))


@pytest.mark.parametrize(
    ("change", "fields"),
    [(other_speed, ("mfu", "throughput", "energy")), (other_memory, ("memory",)), (other_speed, FIELDS)],
)
def test_runs_that_differ_in_withheld_figures_only_are_published_alike(
    valid: Result, change: Callable[[Result], Result], fields: Fields
) -> None:
    open_texts, texts = published([change(valid)], ()), published([change(valid)], fields)
    assert all(open_texts[name] != published([valid], ())[name] for name in FILES)
    assert texts == published([valid], fields)


def test_sentences_that_may_repeat_a_figure_are_left_out(valid: Result) -> None:
    status = Status(word="invalid", reasons=("12.3 % of the peak",), evidence="rank 0 said 98.7 %")
    texts = published([valid.model_copy(update={"status": status})], ("mfu", "peak"))
    assert all("invalid" in text and "12.3 %" not in text and "98.7 %" not in text for text in texts.values())


def test_a_ratio_to_the_peak_in_a_reason_goes_with_either(valid: Result) -> None:
    above = [u.model_copy(update={"value": None, "reason": "7 x the peak (secret)"}) for u in valid.utilisation]
    odd = valid.model_copy(update={"utilisation": tuple(above)})
    for fields in (("mfu",), ("peak",)):
        assert "7 x the peak" not in json.dumps(hidden(odd, fields, WORD))  # type: ignore[arg-type]


def test_times_of_starts_tell_no_durations_where_throughput_is_withheld(valid: Result) -> None:
    later = valid.model_copy(update={"run_id": valid.run_id.replace("T030405Z", "T040506Z")})
    fields: Fields = ("mfu", "throughput", "energy")
    assert published([later], fields) == published([valid], fields)
    assert published_id(valid.run_id, fields) == "tiny_fake_fake_abcdef"
    assert published_id(valid.run_id, ("memory",)) == valid.run_id


def test_no_result_without_them_holds_a_figure(valid: Result) -> None:
    bare = without(valid, FIELDS)
    assert bare.throughput is None and {u.value for u in bare.utilisation} == {u.peak_tflops for u in bare.utilisation}
    assert bare.energy.mean_watts.value is bare.memory.process_peak.value is None
    assert bare.loss == valid.loss and bare.identity == valid.identity


def test_a_new_key_of_results_is_decided_on_before_it_is_published() -> None:
    undecided = set(Result.model_fields) - set(PUBLISHED) - set(LEFT_OUT)
    assert not undecided, "may it repeat a figure that is withheld? LEFT_OUT if so, else PUBLISHED"


def test_a_new_figure_of_a_section_is_withheld_with_it(valid: Result) -> None:
    figure = {"value": 4.2, "unit": "tokens/J", "reason": None}
    row = valid.model_dump(mode="json")
    row["energy"] |= {"tokens_per_joule": figure, "of_host": 0.3}
    row["memory"] |= {"cached_peak": figure}
    later: Any = SimpleNamespace(model_dump=lambda mode: row, run_id=valid.run_id)
    found = hidden(later, ("energy", "memory"), WORD)
    assert (
        found["energy"]["tokens_per_joule"]
        == found["memory"]["cached_peak"]
        == {**figure, "value": WORD, "reason": WORD}
    )
    assert found["energy"]["of_host"] == WORD and found["energy"]["boundary"] == valid.energy.boundary


def test_a_new_figure_of_utilisations_and_of_the_csv_is_decided_on(valid: Result) -> None:
    decided = {*STAYS_OF_UTILISATION, *(name for names in _UTILISATION.values() for name in names)}
    assert set(Utilisation.model_fields) == decided, "withheld with a field: _UTILISATION; else STAYS_OF_UTILISATION"
    prefixes = tuple(prefix for names in _CSV_NAMES.values() for prefix in names)
    undecided = {name for name in plain(valid) if not name.startswith(prefixes)} - set(STAYS_OF_CSV)
    assert not undecided, "withheld with a field: _CSV_NAMES; else STAYS_OF_CSV"


def test_the_chosen_cells_read_withheld_in_every_format(valid: Result) -> None:
    texts = published([valid, valid], ("mfu", "peak"))
    header, _, row, *_ = texts["markdown"].splitlines()
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert cells["MFU (palm)"] == WORD and cells["peak |"].startswith(WORD) and cells["tokens/s/device"] == "64.0"
    first, _ = csv.DictReader(io.StringIO(texts["csv"]))
    assert {first["mfu_palm/1"], first["peak_tflops"], first["peak_source"], first["hfu_megatron-2021/1"]} == {WORD}
    assert float(first["tokens_per_second_per_device"]) == 64
    shown = json.loads(texts["json"])[0]
    assert shown["withheld"] == ["mfu", "peak"] and shown["utilisation"][0]["value"] == WORD
    assert texts["table"].count(WORD) == 4 and max(map(len, texts["table"].splitlines())) <= 80


def test_what_is_not_withheld_is_there(valid: Result) -> None:
    texts = published([valid], ("memory",))
    assert "2 TFLOP/s" in texts["markdown"] and '"peak_tflops": 2.0' in texts["json"]
    assert next(csv.DictReader(io.StringIO(texts["csv"])))["peak_tflops"] == "2.0"


@pytest.mark.parametrize(("text", "fields"), [("peak,mfu", ("mfu", "peak")), (" energy ,", ("energy",))])
def test_fields_are_read(text: str, fields: Fields) -> None:
    assert parse_fields(text) == fields


@pytest.mark.parametrize(("text", "says"), [("mfu,peek", "nearest: peak"), ("", "found nothing"), ("loss", "memory")])
def test_unknown_fields_are_refused_with_those_there_are(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fields(text)
    assert says in str(caught.value) and "mfu, peak, throughput, energy, memory" in str(caught.value)
    assert isinstance(caught.value, UnknownName) == bool(text)


# -- the folder to publish


@pytest.fixture
def runs(run: RunPaths) -> list[Path]:
    """Two runs, the second a copy of the first with an id of its own."""
    second = Path(shutil.copytree(run.root, run.root.with_name("20260102T030406Z_tiny_fake_fake_123456")))
    rename(RunPaths(second))
    return [run.root, second]


def report(runs: Sequence[Path], *more: object) -> int:
    return main(["report", *map(str, runs), *map(str, more)])


def test_a_bundle_holds_every_format_and_nothing_withheld(runs: list[Path], tmp_path: Path) -> None:
    assert report(runs, "--withhold", "mfu,peak", "--bundle", tmp_path / "out") == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(FILES.values())
    everything = "".join(p.read_text() for p in (tmp_path / "out").iterdir())
    assert "a probe of the tests" not in everything and WORD in everything
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "runs"], "no file to keep secret"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--withhold", "peak"], "give --withhold FIELDS and --bundle DIR together"),
        (["--bundle", "{}/new"], "give --withhold FIELDS and --bundle DIR together"),
        (["--withhold", "mfu,speed", "--bundle", "{}/new"], "unknown field 'speed'"),
        (["--withhold", "peak", "--bundle", "{}/new"], "the peak follows from MFU, tokens/s"),
        (["--withhold", "mfu,peak", "--bundle", "{}"], "exists and is not empty"),
        (
            ["--withhold", "mfu,peak", "--bundle", "{}/new", "--output", "x"],
            "--bundle gets the withheld table in every format",
        ),
        (["--withhold", "mfu,peak", "--bundle", "{}/taken/x"], "cannot be written: Not a directory"),
    ],
)
def test_wrong_usage_publishes_nothing(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    (tmp_path / "taken").write_text("")
    assert report(runs, *(text.format(tmp_path) for text in more)) == 2
    assert says in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs", "taken"]


def test_a_run_given_twice_is_published_and_shown_once(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([runs[0], runs[0]], "--withhold", "mfu,peak", "--bundle", tmp_path / "out") == 0
    capsys.readouterr()
    assert report([runs[0], runs[1], runs[0]], "--format", "json") == 0
    listed = [each["run_id"] for each in json.loads(capsys.readouterr().out) if "run_id" in each]
    assert listed == [run.name for run in runs[:2]]
    bundle = tmp_path / "run.zip"
    assert main(["evidence", "bundle", str(runs[0]), "--output", str(bundle)]) == 0
    capsys.readouterr()
    assert report([runs[0], bundle], "--format", "json") == 0
    assert [each["run_id"] for each in json.loads(capsys.readouterr().out) if "run_id" in each] == [runs[0].name]
