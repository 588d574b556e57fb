"""`verify` accepts honest bundles from anywhere, and refuses each forged one with its reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Protocol

import levelfield
import pytest
from bundles import (
    HOST,
    SECRET,
    USER,
    Members,
    bundled,
    enrich,
    member,
    members_of,
    only_run,
    raw_archive,
    rehashed,
    resealed,
    with_manifest,
    written,
)
from levelfield.catalog import registry as registries
from levelfield.cli.main import main
from levelfield.evidence.verification import OPTIONAL_FIELDS
from levelfield.judge import cross_checks
from levelfield.judge.promotion import make_reference
from levelfield.specs.base import dump, sha256_of
from levelfield.specs.bundle import MANIFEST, Manifest
from levelfield.specs.paths import RunPaths
from plans import PLUGINS
from recorded_runs import SECOND_NS, Event, break_off, edit, fail, report_framework, seal_again, tamper

GOLDEN = Path(__file__).parents[1] / "golden" / "evidence.txt"
EVENTS, NOT_FOLLOWING = "events/rank1.jsonl", "does not follow"
Forgery = Callable[[Members, str], object]
References = Callable[[object], Path]


class Verify(Protocol):
    """Verifies a bundle. Returns exit code, output and error of the command, with the tests' vendor."""

    def __call__(self, path: Path, *arguments: object, plugins: bool = True) -> tuple[int, str, str]: ...


class Forged(Protocol):
    """Verifies the honest bundle after a change of its members. renewed: what the forger makes anew (RENEWALS)."""

    def __call__(self, change: Forgery, renewed: str, *arguments: object) -> tuple[int, str, str]: ...


@pytest.fixture(scope="session")
def honest(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a valid run with provenance, a log, and the reference that it was compared with."""
    folder = tmp_path_factory.mktemp("honest")
    run = RunPaths(Path(shutil.copytree(recorded, folder / recorded.name)))
    enrich(run)
    run.reference.write_text(dump(make_reference(run, "the test's")))
    seal_again(run)
    return bundled(folder / "run.zip", run)


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    def run(path: Path, *arguments: object, plugins: bool = True) -> tuple[int, str, str]:
        capsys.readouterr()
        more = ["--plugins", str(PLUGINS)] if plugins else []
        code = main(["evidence", "verify", str(path), *map(str, arguments), *more])
        out, err = capsys.readouterr()
        return code, " ".join(out.split()), " ".join(err.split())

    return run


# What a forger makes anew, beside what they changed.
RENEWALS: dict[str, Callable[[Members, Path], Members]] = {
    "nothing": lambda members, folder: members,
    "manifest": lambda members, folder: rehashed(members),
    "seal": lambda members, folder: resealed(members, folder),
    "all": lambda members, folder: resealed(members, folder, restate=True),
}


@pytest.fixture
def forged(honest: Path, tmp_path: Path, verify: Verify) -> Forged:
    def run(change: Forgery, renewed: str, *arguments: object) -> tuple[int, str, str]:
        members = members_of(honest)
        change(members, only_run(members))
        return verify(written(tmp_path / "b.zip", RENEWALS[renewed](members, tmp_path / "run")), *arguments)

    return run


@pytest.fixture
def references(tmp_path: Path) -> References:
    """references(content): a folder of plugins with this reference of the recorded run's case."""

    def write(content: object) -> Path:
        folder = tmp_path / "plugins" / "configs" / "references"
        folder.mkdir(parents=True)
        (folder / "tiny_smoke_fp32.json").write_text(json.dumps(content))
        return tmp_path / "plugins"

    return write


def selected(names: Iterable[str], stay: Collection[str]) -> list[Any]:
    """Parameters of which these stay in `make test`; further ones of their kind are thorough."""
    return [pytest.param(name, marks=[] if name in stay else [pytest.mark.thorough]) for name in names]


def json_of(text: str) -> Event:
    """The first run of what `verify --json` prints."""
    runs: list[Event] = json.loads(text)["runs"]
    return runs[0]


def has_words(text: str, *words: str) -> bool:
    """Whether a text has these words, in this order."""
    return re.search(".*".join(map(re.escape, words)), text) is not None


# -- honest bundles


def test_an_honest_bundle_follows(honest: Path, verify: Verify, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "verify", str(honest), "--plugins", str(PLUGINS)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    code, out, err = verify(honest)
    assert (code, err) == (0, "") and ": follows" in out
    assert has_words(out, "sealed: ", "job.json, plan.json,", "provenance.json", "seal: ", "logs/rank0.log")
    verification = json_of(verify(honest, "--json")[1])
    words = (verification["word"], verification["seal"]["word"], verification["contradictions"])
    assert words == ("follows", "sealed", [])
    assert {"job.json", "plan.json", "provenance.json"} <= set(verification["redacted"])
    assert verification["unbound"] == ["logs/rank0.log"]


def test_it_follows_elsewhere_without_vendors_and_references(
    honest: Path, verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registries, "checkout", lambda: tmp_path)
    moved = Path(shutil.copy(honest, tmp_path / "other.zip"))
    code, out, _ = verify(moved, "--json", plugins=False)
    assert code == 0
    notes = json_of(out)["notes"]
    assert any(has_words(note, "vendor fake", "peaks") for note in notes), notes
    assert any(has_words(note, "reference tiny_smoke_fp32") for note in notes), notes


def test_the_same_run_gives_the_same_bytes_in_any_folder(recorded: Path, tmp_path: Path) -> None:
    made = []
    for place in ("a", "b"):
        run = RunPaths(Path(shutil.copytree(recorded, tmp_path / place / recorded.name)))
        made.append(bundled(tmp_path / f"{place}.zip", run).read_bytes())
    assert made[0] == made[1]


def test_nothing_that_names_people_or_places_leaves(honest: Path, recorded: Path) -> None:
    members = members_of(honest)
    text = b"\n".join(members.values()).decode()
    for name in (
        HOST,
        USER,
        SECRET,
        "blue-whale",
        "s3cr3tvalue",
        "abcdef\n",
        "12345678-1234",
        "/data/of",
        "/home/",
        str(recorded),
    ):
        assert name not in text, name
    log = members[f"{only_run(members)}logs/rank0.log"].decode()
    assert log.startswith("user-1@host-1:/redacted/path-") and "GPU-device-1" in log and "API_KEY=(masked)" in log
    kinds = {replacement["kind"] for replacement in json.loads(members[MANIFEST])["replacements"]}
    assert kinds == {"device", "folder", "host", "path", "secret", "user", "variable"}
    inherited = json.loads(members[f"{only_run(members)}provenance.json"])["inherited"]
    assert (inherited["SITE"], inherited["OMP_NUM_THREADS"]) == ("(left out)", "2")


def test_a_user_named_like_a_word_of_the_run_changes_no_document(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "fake")
    members = members_of(bundled(tmp_path / "b.zip", run))
    assert json.loads(members[MANIFEST])["kept"] == 1
    assert json.loads(members[f"{only_run(members)}plan.json"])["implementation"]["framework"] == "fake"


def test_unsealed_and_failed_runs_are_bundled_and_named_so(run: RunPaths, tmp_path: Path, verify: Verify) -> None:
    outcome = json.loads(run.outcome.read_text())
    run.outcome.write_text(json.dumps({key: value for key, value in outcome.items() if key != "seal"}))
    code, out, _ = verify(bundled(tmp_path / "unsealed.zip", run), "--json")
    assert (code, json_of(out)["seal"]["word"]) == (0, "unsealed")
    assert has_words(json_of(out)["seal"]["reason"], "outcome.json", "no seal")
    break_off(run, 7, {"class": "error", "type": "OSError", "message": f"/home/{USER}/x is missing"})
    fail(run)
    assert verify(bundled(tmp_path / "failed.zip", run))[0] == 0
    run.outcome.unlink()
    assert verify(bundled(tmp_path / "killed.zip", run))[0] == 0


def test_a_tampered_run_makes_no_bundle(run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tamper(run.events / "rank0.jsonl", lambda events: events[:-1])
    assert main(["evidence", "bundle", str(run.root), "--output", str(tmp_path / "b.zip")]) == 4
    assert "events/rank0.jsonl differs" in capsys.readouterr().err
    assert not (tmp_path / "b.zip").exists()


def test_a_bundle_overwrites_nothing_and_takes_a_run_once(
    run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.zip").write_text("mine")
    assert main(["evidence", "bundle", str(run.root), "--output", str(tmp_path / "b.zip")]) == 2
    assert (tmp_path / "b.zip").read_text() == "mine"
    assert main(["evidence", "bundle", str(run.root), str(run.root), "--output", str(tmp_path / "c.zip")]) == 2
    assert "twice" in capsys.readouterr().err


def test_a_long_log_keeps_its_end(run: RunPaths, tmp_path: Path, verify: Verify) -> None:
    (run.logs / "rank0.log").write_text("".join(f"line {number}\n" for number in range(200_000)) + "the end\n")
    seal_again(run)
    members = members_of(path := bundled(tmp_path / "b.zip", run))
    log = members[f"{only_run(members)}logs/rank0.log"]
    assert len(log) == 2**20 and log.endswith(b"the end\n") and verify(path)[0] == 0


# -- forged bundles: members changed, and the manifest left


def change(members: Members, name: str, old: str, new: str) -> None:
    content = members[name].decode()
    assert old in content
    members[name] = content.replace(old, new, 1).encode()


def edit_json(members: Members, name: str, edit: Callable[[Any], object]) -> None:
    content = json.loads(members[name])
    edit(content)
    members[name] = json.dumps(content).encode()


def edit_lines(members: Members, name: str, edit: Callable[[Any], object]) -> None:
    lines = [json.loads(line) for line in members[name].splitlines()]
    for line in lines:
        edit(line)
    members[name] = "".join(json.dumps(line) + "\n" for line in lines).encode()


def _on(name: str, edit: Callable[[Any], object]) -> Forgery:
    """Change a document of the run."""
    return lambda members, run: edit_json(members, f"{run}{name}.json", edit)


@pytest.mark.parametrize("name", [EVENTS, "plan.json", "result.json", "outcome.json", "telemetry.jsonl"])
def test_a_digest_that_does_not_agree_is_named(forged: Forged, name: str) -> None:
    code, _, err = forged(lambda members, run: members.update({run + name: members[run + name] + b" "}), "nothing")
    assert code == 4 and has_words(err, f"{name}' differs", "digest", "manifest")


def test_a_changed_manifest_is_found(forged: Forged) -> None:
    code, _, err = forged(lambda members, run: edit_json(members, MANIFEST, lambda m: m.update(kept=7)), "nothing")
    assert code == 4 and has_words(err, "manifest.json: ", "digest", "changed")


def test_an_added_member_is_found(forged: Forged) -> None:
    code, _, err = forged(lambda members, run: members.update({f"{run}logs/rank9.log": b"x"}), "nothing")
    assert code == 4 and has_words(err, "logs/rank9.log'", "manifest", "added")


@pytest.mark.parametrize("name", [EVENTS, "logs/rank0.log"])
def test_a_removed_member_is_found(forged: Forged, name: str) -> None:
    code, _, err = forged(lambda members, run: members.pop(run + name), "nothing")
    assert code == 4 and has_words(err, f"{name}'", "manifest", "missing")


def exchange(members: Members, run: str) -> None:
    zero, one = (f"{run}events/rank{rank}.jsonl" for rank in (0, 1))
    members[zero], members[one] = members[one], members[zero]


def test_files_exchanged_between_ranks_are_found(forged: Forged) -> None:
    code, out, _ = forged(exchange, "manifest")
    assert code == 4 and has_words(out, "tampered: ", "events/rank0.jsonl differs")


# -- forged bundles: the manifest made anew, and the seal left


REHASHED: dict[str, tuple[Forgery, str]] = {
    "a step": (lambda m, run: edit_lines(m, run + EVENTS, _slow_step), f"{EVENTS} differs"),
    "a rank removed": (lambda m, run: m.pop(run + EVENTS), f"{EVENTS} is missing"),
    "a reading of memory": (lambda m, run: change(m, f"{run}telemetry.jsonl", "3221225472", "3021225472"), "telemetry"),
    "the reference": (lambda m, run: change(m, f"{run}reference.json", "3.6", "3.5"), "reference.json differs"),
    "a number of the redacted plan": (
        _on("plan", lambda p: p["peak"].update(tflops=1.0)),
        "plan.json without names differs",
    ),
    "a word of the redacted job": (
        _on("job", lambda j: j["training"].update(precision="bf16")),
        "job.json without names differs",
    ),
    "the time of the start": (
        _on("provenance", lambda p: p.update(time="2026-01-02T03:04:10+00:00")),
        "provenance.json without names differs",
    ),
    "the sighting of the window": (_on("outcome", lambda o: o.update(seen={})), "outcome.json differs"),
}


def _slow_step(event: dict[str, Any]) -> None:
    if event.get("step") == 7 and "end_ns" in event:
        event["end_ns"] += 1000


@pytest.mark.parametrize("name", REHASHED)
def test_the_seal_finds_what_a_new_manifest_hides(forged: Forged, name: str) -> None:
    forge, words = REHASHED[name]
    code, out, _ = forged(forge, "manifest")
    assert code == 4 and ": tampered" in out and words in out


STATED: dict[str, tuple[Callable[[Any], object], str]] = {
    "a figure": (lambda r: r["throughput"].update(tokens_per_second_per_device=99.0), "tokens_per_second_per_device"),
    "a figure by 0.001 %": (lambda r: r["loss"].update(last=r["loss"]["last"] * 1.00001), "loss.last"),
    "MFU": (lambda r: r["utilisation"][0].update(value=0.5), "utilisation[0].value"),
    "the word": (lambda r: r["status"].update(word="invalid"), "status.word: stated invalid, recomputed valid"),
    "the verdict": (lambda r: r["alignment"].update(verdict="aligned"), "alignment.verdict"),
    "a null in place of a figure": (lambda r: r["memory"]["device_used_peak"].update(value=None), "device_used_peak"),
    "true in place of 1": (lambda r: r.update(repeat=True), "repeat: stated True, recomputed 1"),
    "a key more": (lambda r: r.update(better=1), "better: stated 1, recomputed (absent)"),
    "a key less": (lambda r: r.pop("loss"), "loss.first: stated (absent)"),
    "another schema": (lambda r: r.update(schema="levelfield.result/9"), "result.json: schema"),
}


@pytest.mark.parametrize(
    "name", selected(STATED, ("a figure", "the word", "a key more", "a key less", "another schema"))
)
def test_a_statement_that_does_not_follow_is_named(forged: Forged, name: str) -> None:
    edit, words = STATED[name]
    code, out, _ = forged(_on("result", edit), "manifest", "--json")
    assert code == 4 and json_of(out)["word"] == NOT_FOLLOWING
    assert any(words in contradiction for contradiction in contradictions(out)), out


# -- forged bundles: seal and manifest made anew


def _times(event: dict[str, Any], factor: float, begin: int = 0) -> None:
    if "end_ns" in event:
        event["end_ns"] = begin + round((event["end_ns"] - begin) * factor)


def _on_both(edit: Callable[[Any], object]) -> Forgery:
    def forge(members: Members, run: str) -> None:
        for rank in (0, 1):
            edit_lines(members, f"{run}events/rank{rank}.jsonl", edit)

    return forge


def _louder(event: dict[str, Any]) -> None:
    if event["event"] == "step":
        event["loss"] *= 1.01


RESEALED: dict[str, tuple[Forgery, str]] = {
    "the losses by 1 %": (_on_both(_louder), "loss.first"),
    "the times, from the first on": (_on_both(lambda e: _times(e, 0.25, 7_000_000_000_000)), "throughput"),
    "the tokens of a step": (
        _on_both(lambda e: e.update(tokens=e["tokens"] * 2) if e["event"] == "step" else None),
        "status.word: stated valid, recomputed invalid",
    ),
    "a rank removed": (lambda m, run: m.pop(run + EVENTS), "status.word: stated valid, recomputed invalid"),
    "memory": (
        lambda m, run: m.update({f"{run}telemetry.jsonl": m[f"{run}telemetry.jsonl"].replace(b"3221225472", b"1")}),
        "memory.device_used_peak.value",
    ),
    "the peak": (
        _on("plan", lambda p: p["peak"].update(tflops=1.0)),
        "utilisation[0].peak_tflops: stated 2.0, recomputed 1.0",
    ),
}


def contradictions(out: str) -> list[str]:
    return [f"{c['field']}: stated {c['stated']}, recomputed {c['recomputed']}" for c in json_of(out)["contradictions"]]


@pytest.mark.parametrize("name", RESEALED)
def test_a_new_seal_does_not_hide_what_no_longer_follows(forged: Forged, name: str) -> None:
    forge, words = RESEALED[name]
    code, out, _ = forged(forge, "seal", "--json")
    assert code == 4 and json_of(out)["word"] == NOT_FOLLOWING
    assert any(words in contradiction for contradiction in contradictions(out)), out


# -- forged bundles: everything made anew, so that only facts of elsewhere contradict


CONSISTENT: dict[str, tuple[Forgery, str]] = {
    "every time over four": (_on_both(lambda e: _times(e, 0.25)), "events: first time"),
    "every time by four": (_on_both(lambda e: _times(e, 4.0)), "telemetry ends at"),
    "a start on another day": (
        _on("provenance", lambda p: p.update(time="2026-01-03T03:04:09+00:00")),
        "provenance.json: time",
    ),
    "a start before the run's id": (
        _on("provenance", lambda p: p.update(time="2026-01-01T00:00:00+00:00")),
        "the run id was made at 20260102T030405Z",
    ),
    "a peak that the vendor publishes otherwise": (
        _on("plan", lambda p: p["hardware"]["chip"]["peaks"].update(fp32={"tflops": 1.0, "source": "a page"})),
        "hardware.chip.peaks.fp32: stated 1",
    ),
    "a published peak that the chip has not": (
        _on("plan", lambda p: p["peak"].update(source="a datasheet")),
        "plan.json: peak.source",
    ),
    "a measured peak above what the maker publishes": (
        _on("plan", lambda p: p["peak"].update(tflops=500.0)),
        "plan.json: peak.tflops: stated 500.0, recomputed F1 has at most 150",
    ),
    "other work under the same digest": (
        _on("plan", lambda p: p["work"]["training"].update(seed=7)),
        "plan.json: work_digest",
    ),
    "another corpus than the plan's": (
        _on("job", lambda j: j["corpus"].update(digest="sha256:other")),
        "job.json: corpus",
    ),
    "another job than the plan's": (_on("job", lambda j: j["model"].update(layers=1)), "job.json: model"),
}


@pytest.mark.parametrize(
    "name", selected(CONSISTENT, ("every time over four", "a start on another day", "other work under the same digest"))
)
def test_facts_of_elsewhere_contradict_a_consistent_forgery(forged: Forged, name: str) -> None:
    forge, words = CONSISTENT[name]
    code, out, _ = forged(forge, "all", "--json")
    assert code == 4 and any(words in contradiction for contradiction in contradictions(out)), out


def test_an_exchanged_reference_of_the_same_run_is_found(honest: Path, forged: Forged, references: References) -> None:
    members = members_of(honest)
    plugins = references(json.loads(members[f"{only_run(members)}reference.json"]))
    change = _on("reference", lambda r: r.update(losses=[loss * 1.5 for loss in r["losses"]]))
    code, out, _ = forged(change, "all", "--plugins", plugins)
    assert code == 4 and "reference.json: losses" in out


def noise_row(size: float, run_id: str = "20260101T000000Z_known") -> dict[str, Any]:
    return {"changed": "fake 1.2.3, DP1TP1PP1", "run_id": run_id, "first_step": size, "gradient": size, "curve": size}


def other_weights(reference: dict[str, Any]) -> None:
    name = next(iter(reference["weights"]))
    reference["weights"][name] = [value * 1.5 for value in reference["weights"][name]]


EXCHANGED: dict[str, tuple[Callable[[Any], object], str]] = {
    "wider noise": (lambda r: r.update(noise=[noise_row(0.5)]), "noise of 20260101T000000Z_known"),
    "rows that nobody has": (lambda r: r["noise"].append(noise_row(0.5, "20260101T000001Z_more")), "verdict by it"),
    "final weights": (other_weights, "reference.json: weights"),
    "routing": (lambda r: r.update(routing={"1": {"0": [3, 5]}}), "reference.json: routing"),
    "gradient norms": (lambda r: r.update(grad_norms=[2.0] * len(r["grad_norms"])), "reference.json: grad_norms"),
}


@pytest.mark.parametrize("name", selected(EXCHANGED, ("wider noise", "final weights")))
def test_a_reference_that_accepts_more_than_this_checkouts_is_found(
    recorded: Path, tmp_path: Path, verify: Verify, references: References, name: str
) -> None:
    """The run differs by 1 % from the reference; the forged one has room for that."""
    run = RunPaths(Path(shutil.copytree(recorded, tmp_path / "runs" / recorded.name)))
    enrich(run)
    right = json.loads(dump(make_reference(run, "the test's"))) | {"noise": [noise_row(1e-6)]}
    plugins = references(right)
    run.reference.write_text(json.dumps(right))
    seal_again(run)
    members = members_of(bundled(tmp_path / "a.zip", run))
    assert verify(tmp_path / "a.zip", "--plugins", plugins)[0] == 0
    if "noise" in name or "rows" in name:
        _on_both(_louder)(members, only_run(members))
    forge, words = EXCHANGED[name]
    _on("reference", forge)(members, only_run(members))
    path = written(tmp_path / "b.zip", resealed(members, tmp_path / "run", restate=True))
    code, out, _ = verify(path, "--plugins", plugins)
    assert code == 4 and words in out, out


def test_more_rows_that_change_no_verdict_are_a_note(honest: Path, forged: Forged, references: References) -> None:
    """As a newer checkout has them."""
    members = members_of(honest)
    plugins = references(json.loads(members[f"{only_run(members)}reference.json"]) | {"noise": [noise_row(1e-6)]})
    more = {"noise": [noise_row(1e-6), noise_row(1e-6, "20260101T000001Z_more")]}
    code, out, _ = forged(_on("reference", lambda r: r.update(more)), "all", "--json", "--plugins", plugins)
    assert code == 0
    assert any(has_words(note, "1 row(s)", "reference.json") for note in json_of(out)["notes"]), out


def test_verify_tells_whether_the_code_is_the_one_at_hand(honest: Path, tmp_path: Path, verify: Verify) -> None:
    assert json_of(verify(honest, "--json")[1])["code"] == "this code"
    assert has_words(json_of(verify(honest, "--json", plugins=False)[1])["code"], "other code: ", "framework fake")
    other = Path(shutil.copytree(PLUGINS, tmp_path / "other"))
    (other / "models" / "fake" / "fast.so").write_bytes(b"other")
    code, out, _ = verify(honest, "--json", "--plugins", other, plugins=False)
    assert code == 0 and re.match("other code: sha256:.*, and sha256:", json_of(out)["code"])


@pytest.mark.parametrize("text", ["all is well", "see /etc/passwd"])
def test_a_text_that_the_bundle_adds_is_found_or_named(
    run: RunPaths, tmp_path: Path, verify: Verify, text: str
) -> None:
    """Sentences of a launcher may name people and places, so a redacted outcome cannot be held to their words."""
    outcome = json.loads(run.outcome.read_text())
    run.outcome.write_text(json.dumps(outcome | {"extra": {"warnings": f"node 0 of /home/{USER}/x was slow"}}))
    seal_again(run)
    path = bundled(tmp_path / "a.zip", run)
    code, out, _ = verify(path, "--json")
    assert code == 0
    assert any(has_words(note, "no seal", ": node 0") for note in json_of(out)["notes"]), out
    members = members_of(path)

    def verified_with(warning: str) -> tuple[int, Event]:
        outcome_file, result_file = (f"{only_run(members)}{name}.json" for name in ("outcome", "result"))
        edit_json(members, outcome_file, lambda outcome: outcome["extra"].update(warnings=warning))
        edit_json(members, result_file, lambda result: result.update(warnings=warning.splitlines()))
        digest = sha256_of(members[result_file])
        made = entry_changed(members, "outcome.json", stored=sha256_of(members[outcome_file]))
        made = entry_changed(made, "result.json", original=digest, stored=digest)
        code, out, _ = verify(written(tmp_path / "b.zip", made), "--json")
        return code, json_of(out)

    code, verification = verified_with(text)
    assert code == 0 and any(has_words(note, "no seal", text) for note in verification["notes"]), verification
    code, verification = verified_with(f"{text}\n{text}")
    assert code == 4 and "outcome.json without" in verification["seal"]["reason"], verification


def test_a_forger_who_does_all_of_it_right_is_not_found(forged: Forged) -> None:
    """What docs/evidence.md says that verify cannot show. A signature, or a digest kept elsewhere, does."""
    assert forged(_on_both(_louder), "all")[0] == 0


# -- hostile contents


HOSTILE: dict[str, tuple[str, bytes]] = {
    "NaN": ("telemetry.jsonl", b'{"time_ns": NaN, "samples": []}\n'),
    "infinity": ("telemetry.jsonl", b'{"time_ns": -Infinity, "samples": []}\n'),
    "1e999": (EVENTS, b'{"event": "step", "loss": 1e999}\n'),
    "a key twice": (EVENTS, b'{"event": "step", "event": "end"}\n'),
    "40 levels": (EVENTS, b'{"event":' + b"[" * 40 + b"]" * 40 + b"}\n"),
    "100,000 levels": (EVENTS, b"[" * 100_000 + b"]" * 100_000 + b"\n"),
    "a line of 1 MB": ("telemetry.jsonl", b'{"x": "' + bytes(range(97, 123)) * 45_000 + b'"}\n'),
    "endless digits": (EVENTS, b'{"event": "step", "step": ' + b"1" * 400 + b"}\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_json_that_two_readers_could_read_otherwise_is_refused(forged: Forged, name: str) -> None:
    file, line = HOSTILE[name]
    code, _, err = forged(lambda members, run: members.update({run + file: members[run + file] + line}), "manifest")
    assert code == 4 and f"{file}': line " in err and "found" in err


@pytest.mark.parametrize(
    "text", ['{"schema": NaN}', '{"a": 1, "a": 2}', "[]", "{}", '{"schema": "levelfield.bundle/9"}', ""]
)
def test_a_manifest_that_is_none_makes_no_bundle(forged: Forged, text: str) -> None:
    assert forged(lambda members, run: members.update({MANIFEST: text.encode()}), "nothing")[0] == 2


def test_a_manifest_that_lists_a_run_under_another_name_is_found(honest: Path, tmp_path: Path, verify: Verify) -> None:
    members = members_of(honest)
    run, other = only_run(members), "runs/20270102T030405Z_tiny_fake_fake_abcdef/"
    moved = {name.replace(run, other): content for name, content in members.items()}
    made = with_manifest(
        moved, lambda m: m.model_copy(update={"runs": {other.split("/")[1]: next(iter(m.runs.values()))}})
    )
    code, out, _ = verify(written(tmp_path / "b.zip", made))
    assert code == 4 and "plan.json: run_id" in out


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), b"no archive at all", b"\x1f\x8b\x08\x00" * 9])
def test_a_file_that_is_no_bundle_has_code_2(tmp_path: Path, verify: Verify, content: bytes) -> None:
    (tmp_path / "b.zip").write_bytes(content)
    code, _, err = verify(tmp_path / "b.zip")
    assert code == 2 and "a bundle" in err


def test_a_folder_and_a_missing_file_have_code_2(tmp_path: Path, verify: Verify) -> None:
    assert verify(tmp_path)[0] == 2 and verify(tmp_path / "absent.zip")[0] == 2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_archive_is_no_bundle(honest: Path, tmp_path: Path, verify: Verify, share: float) -> None:
    content = honest.read_bytes()
    (tmp_path / "b.zip").write_bytes(content[: int(len(content) * share)])
    code, _, err = verify(tmp_path / "b.zip")
    assert code == 2 and "truncated" in err


def with_option(name: str, **options: object) -> zipfile.ZipInfo:
    info = member(name)
    for key, value in options.items():
        setattr(info, key, value)
    return info


LAST = "runs/zz/logs/zz.log"
ARCHIVES: dict[str, tuple[Callable[[], tuple[zipfile.ZipInfo, bytes]], str]] = {
    "a way out": (lambda: (member("runs/../../etc/passwd"), b"x"), "which no bundle has"),
    "an absolute name": (lambda: (member("zz/etc/passwd"), b"x"), "which no bundle has"),
    "a folder": (lambda: (member("runs/zz/"), b""), "which no bundle has"),
    "a backslash": (lambda: (member("runs/zz/logs\\..\\x"), b"x"), "which no bundle has"),
    "a name with a control character": (lambda: (member("runs/zz/logs/\x1b[2J"), b"x"), "which no bundle has"),
    "a file that no run has": (lambda: (member("runs/zz/.ssh"), b"x"), "which no bundle has"),
    "a link": (
        lambda: (member(LAST, 0o120777), b"/etc/passwd"),
        "found attributes 120777, 0x0, expected 100644, 0x0 of",
    ),
    "a device": (
        lambda: (member(LAST, 0o060600), b""),
        "found attributes 60600, 0x0, expected 100644, 0x0 of a regular",
    ),
    "another program": (
        lambda: (member(LAST, 0o100600), b""),
        "another program than `evidence bundle` wrote the archive",
    ),
    "a comment": (lambda: (with_option(LAST, comment=b"hidden"), b"x"), "belong to no member"),
    "an extra field": (lambda: (with_option(LAST, extra=b"\xfe\xca\x02\x00ab"), b"x"), "differs from the archive's"),
    "a bomb": (lambda: (member(LAST), bytes(10_000_000)), "times its compressed size"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_member_that_no_bundle_has_is_refused(honest: Path, tmp_path: Path, verify: Verify, name: str) -> None:
    make, words = ARCHIVES[name]
    entries: list[tuple[zipfile.ZipInfo | str, bytes]] = [*sorted(members_of(honest).items()), make()]
    (tmp_path / "b.zip").write_bytes(raw_archive(entries))
    code, _, err = verify(tmp_path / "b.zip")
    assert code == 4 and "refused" in err and words in err


@pytest.mark.parametrize(("name", "words"), [("plan.json", "twice"), ("logs/RANK0.log", "capitals only")])
def test_two_members_of_one_name_are_refused(
    honest: Path, tmp_path: Path, verify: Verify, name: str, words: str
) -> None:
    members = members_of(honest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = raw_archive([*sorted(members.items()), (only_run(members) + name, b"{}")])
    (tmp_path / "b.zip").write_bytes(content)
    code, _, err = verify(tmp_path / "b.zip")
    assert code == 4 and words in err


def test_bytes_beside_the_members_are_refused(honest: Path, tmp_path: Path, verify: Verify) -> None:
    content = honest.read_bytes()
    for made in (b"#!/bin/sh\n" + content, content[:-2] + b"\x04\x00more"):
        (tmp_path / "b.zip").write_bytes(made)
        assert verify(tmp_path / "b.zip")[0] in (2, 4)


def test_a_header_that_differs_from_the_list_is_refused(honest: Path, tmp_path: Path, verify: Verify) -> None:
    content = bytearray(honest.read_bytes())
    content[22] ^= 1  # the size in the header before the first member; the list at the end has the right one
    (tmp_path / "b.zip").write_bytes(content)
    code, _, err = verify(tmp_path / "b.zip")
    assert code == 4 and has_words(err, "header", "differs")


def test_no_changed_byte_of_an_archive_is_accepted_or_a_fault(honest: Path, tmp_path: Path, verify: Verify) -> None:
    content, path = honest.read_bytes(), tmp_path / "b.zip"
    for place in range(0, len(content), 211):
        made = bytearray(content)
        made[place] ^= 0x41
        path.write_bytes(made)
        is_padding = verify(path)[0] == 0 and members_of(path) == members_of(honest)  # bits after the end of a stream
        assert is_padding or verify(path)[0] in (2, 4), place


def test_too_many_members_are_refused(forged: Forged) -> None:
    more = [f"logs/{number}.log" for number in range(2000)]
    code, _, err = forged(lambda members, run: members.update({run + name: b"" for name in more}), "nothing")
    assert code == 4 and "most 2,000" in err


# What a reader is told of a forgery: what was changed, and what the forger makes anew.
SHOWN: dict[str, tuple[Forgery, str]] = {
    "a member is changed": (
        lambda members, run: members.update({run + EVENTS: members[run + EVENTS] + b" "}),
        "nothing",
    ),
    "a member is added": (lambda members, run: members.update({f"{run}logs/rank9.log": b"x"}), "nothing"),
    "a member is missing": (lambda members, run: members.pop(run + EVENTS), "nothing"),
    "the manifest is changed": (
        lambda members, run: edit_json(members, MANIFEST, lambda manifest: manifest.update(kept=7)),
        "nothing",
    ),
    "two ranks are exchanged": (lambda members, run: exchange(members, run), "manifest"),
    "a number of the redacted plan is changed": (_on("plan", lambda plan: plan["peak"].update(tflops=1.0)), "manifest"),
    "a figure is stated": (_on("result", lambda result: result["loss"].update(last=1.0)), "manifest"),
    "a key is left out": (_on("result", lambda result: result.pop("load")), "manifest"),
    "a plan of endless work": (_on("plan", lambda plan: plan["work"]["training"].update(steps=10**12)), "seal"),
    "the time of the start is another": (
        _on("provenance", lambda provenance: provenance.update(time="2026-01-01T00:00:00+00:00")),
        "all",
    ),
    "a peak is another than the vendor's": (
        _on("plan", lambda plan: plan["hardware"]["chip"]["peaks"].update(fp32={"tflops": 1.0, "source": "a page"})),
        "all",
    ),
}


def test_each_forgery_reads_as_in_the_golden_file(forged: Forged, tmp_path: Path) -> None:
    """Of the contradictions the first three: a result whose status changes has another value in each figure."""
    blocks = []
    for name, (forge, renewed) in SHOWN.items():
        code, out, err = forged(forge, renewed, "--json")
        lines = [f"## {name}", f"exit code {code}", *filter(None, [err])]
        if out:
            verification = json_of(out)
            seal = verification["seal"]
            lines.append(": ".join(filter(None, (verification["word"], seal["word"], seal["reason"]))))
            lines += [f"contradiction: {text}" for text in contradictions(out)[:3]]
            lines += [f"note: {note}" for note in verification["notes"]]
        blocks.append("\n".join(lines))
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    text = re.sub("sha256:[0-9a-f]+", "sha256:#", "\n\n".join(blocks)).replace(str(tmp_path), "#") + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_a_place_that_is_absent_states_its_default(forged: Forged) -> None:
    assert forged(_on("result", lambda r: r.pop("attention_kernel")), "manifest")[0] == 0
    change = _on("result", lambda r: r.update(attention_kernel={"name": "cudnn"}))
    code, out, _ = forged(change, "manifest", "--json")
    (contradiction,) = json_of(out)["contradictions"]
    assert (code, *contradiction.values()) == (4, "attention_kernel.name", "cudnn", "(absent)")


def test_a_field_with_a_value_cannot_be_left_out(run: RunPaths, tmp_path: Path, verify: Verify) -> None:
    report_framework(run, details={"attention_kernel": "cudnn"})
    members = members_of(bundled(tmp_path / "a.zip", run))
    edit_json(members, f"{only_run(members)}result.json", lambda r: r.pop("attention_kernel"))
    code, out, _ = verify(written(tmp_path / "b.zip", rehashed(members)), "--json")
    (contradiction,) = json_of(out)["contradictions"]
    assert (code, *contradiction.values()) == (4, "attention_kernel.name", "(absent)", "cudnn")


@pytest.mark.parametrize(
    "key",
    selected(
        ["alignment", "status", "warnings", "loss", "throughput.step_seconds"], ("alignment", "throughput.step_seconds")
    ),
)
def test_a_claimed_version_lets_nothing_be_left_out(run: RunPaths, tmp_path: Path, verify: Verify, key: str) -> None:
    """Anybody can state a version. Only a value that is the default may be absent."""
    outcome = json.loads(run.outcome.read_text())
    run.outcome.write_text(json.dumps(outcome | {"extra": {"warnings": "the launcher saw something"}}))
    seal_again(run)
    members = members_of(bundled(tmp_path / "a.zip", run))

    def leave_out(result: dict[str, Any]) -> None:
        *path, last = key.split(".")
        for part in path:
            result = result[part]
        result.pop(last)

    edit_json(members, f"{only_run(members)}result.json", leave_out)
    older = {"platform_version": "0.0.9", "result_revision": 0}
    made = with_manifest(rehashed(members), lambda m: m.model_copy(update=older))
    code, out, _ = verify(written(tmp_path / "b.zip", made))
    assert code == 4 and f"{key}" in out and "stated (absent)" in out


@pytest.mark.parametrize("key", OPTIONAL_FIELDS)
def test_what_the_first_results_lack_need_not_be_stated_and_follows_where_it_is(forged: Forged, key: str) -> None:
    code, out, _ = forged(_on("result", lambda r: r.pop(key)), "manifest")
    assert code == 0 and f"not stated: {key}" in out
    code, out, _ = forged(_on("result", lambda r: r.update({key: {}})), "manifest")
    assert code == 4 and f"{key}." in out and "stated (absent)" in out


def test_a_bundle_by_another_version_has_a_note(honest: Path, tmp_path: Path, verify: Verify) -> None:
    made = with_manifest(members_of(honest), lambda m: m.model_copy(update={"platform_version": "9.9"}))
    code, out, _ = verify(written(tmp_path / "b.zip", made), "--json")
    assert code == 0 and has_words(json_of(out)["notes"][0], "levelfield 9.9,", levelfield.__version__)


def test_events_with_a_folder_in_them_are_still_held_against_the_seal(
    run: RunPaths, tmp_path: Path, verify: Verify
) -> None:
    """As torch's, which name the folder of the compiler that built it."""
    report_framework(run, 1, details={"build": f"CXX=/home/{USER}/c++"})
    path = bundled(tmp_path / "b.zip", run)
    verification = json_of(verify(path, "--json")[1])
    assert EVENTS in verification["redacted"] and verification["unbound"] == []
    members = members_of(path)
    edit_lines(members, only_run(members) + EVENTS, _slow_step)
    code, out, _ = verify(written(tmp_path / "forged.zip", rehashed(members)), "--json")
    assert (code, json_of(out)["word"]) == (4, "tampered")
    assert has_words(json_of(out)["seal"]["reason"], EVENTS, "differs")


def test_of_two_runs_the_forged_one_is_named(run: RunPaths, tmp_path: Path, verify: Verify) -> None:
    other = RunPaths(Path(shutil.copytree(run.root, run.root.with_name(f"{run.root.name}2"))))
    for document in (other.plan, other.job):
        document.write_text(json.dumps(json.loads(document.read_text()) | {"run_id": other.root.name}))
    seal_again(other)
    path = bundled(tmp_path / "b.zip", other, run)
    assert verify(path)[0] == 0
    members = members_of(path)
    edit_json(members, f"runs/{other.root.name}/result.json", lambda r: r["loss"].update(last=1.0))
    path = written(tmp_path / "forged.zip", rehashed(members))
    code, out, _ = verify(path, "--json")
    assert code == 4
    words = {verification["run"]: verification["word"] for verification in json.loads(out)["runs"]}
    assert words == {run.root.name: "follows", other.root.name: NOT_FOLLOWING}
    assert "1 of 2" in verify(path)[1]


def entry_changed(members: Members, file: str, **update: object) -> Members:
    """The members with another entry of one file in the manifest."""

    def change_entry(manifest: Manifest) -> Manifest:
        name, run = next(iter(manifest.runs.items()))
        files = {**run.files, file: run.files[file].model_copy(update=update)}
        return manifest.model_copy(update={"runs": {name: run.model_copy(update={"files": files})}})

    return with_manifest(members, change_entry)


@pytest.mark.parametrize(("replaced", "words"), [(0, "not listed as redacted"), (1, "without names differs")])
def test_a_change_that_is_called_redaction_or_not_is_found(
    honest: Path, tmp_path: Path, verify: Verify, replaced: int, words: str
) -> None:
    members = members_of(honest)
    member_name = only_run(members) + EVENTS
    edit_lines(members, member_name, _slow_step)
    made = entry_changed(members, EVENTS, stored=sha256_of(members[member_name]), replaced=replaced)
    code, out, _ = verify(written(tmp_path / "b.zip", made))
    assert code == 4 and ": tampered" in out and words in out


def test_a_reference_that_is_left_out_is_refused(honest: Path, tmp_path: Path, verify: Verify) -> None:
    """Without it every verdict is `unchecked`, and a forger could state that."""
    members = members_of(honest)
    del members[f"{only_run(members)}reference.json"]
    code, _, err = verify(written(tmp_path / "b.zip", entry_changed(members, "reference.json", stored=None)))
    assert code == 4 and has_words(err, "reference.json", "left out")


def test_an_unsealed_run_that_the_manifest_calls_sealed_is_named(run: RunPaths, tmp_path: Path, verify: Verify) -> None:
    outcome = json.loads(run.outcome.read_text())
    run.outcome.write_text(json.dumps({key: value for key, value in outcome.items() if key != "seal"}))

    def call_it_sealed(manifest: Manifest) -> Manifest:
        name, entry = next(iter(manifest.runs.items()))
        seal = entry.seal.model_copy(update={"word": "sealed", "reason": None})
        return manifest.model_copy(update={"runs": {name: entry.model_copy(update={"seal": seal})}})

    members = with_manifest(members_of(bundled(tmp_path / "b.zip", run)), call_it_sealed)
    code, out, _ = verify(written(tmp_path / "forged.zip", members), "--json")
    (contradiction,) = json_of(out)["contradictions"]
    assert (code, contradiction["field"], contradiction["stated"]) == (4, "seal", "sealed")
    assert contradiction["recomputed"].startswith("unsealed ")


def test_a_file_whose_name_no_bundle_allows_is_left_out_and_listed(
    run: RunPaths, tmp_path: Path, verify: Verify
) -> None:
    (run.logs / "what happened?.log").write_text("x")
    seal_again(run)
    code, out, _ = verify(bundled(tmp_path / "b.zip", run), "--json")
    assert (code, json_of(out)["unbound"]) == (0, ["logs/what happened?.log"])


def with_clock_set(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**line, "wall_ns": line["wall_ns"] + (number > 2) * 3600 * SECOND_NS} for number, line in enumerate(lines)]


NOTED: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "a clock that was set": (with_clock_set, "the time of day was set during the run: it moved 3600.0 s"),
    "no telemetry": (lambda lines: [], "there is no telemetry"),
    "a tool that hung": (lambda lines: lines[:2], "telemetry ends 5 s before the events"),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_an_honest_run_may_have_is_a_note(
    run: RunPaths, tmp_path: Path, verify: Verify, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_checks, "MAX_LATE_SECONDS", 2.0)
    enrich(run)
    edit(run.telemetry, NOTED[name][0])
    code, out, _ = verify(bundled(tmp_path / "b.zip", run), "--json")
    assert code == 0 and any(note.startswith(NOTED[name][1]) for note in json_of(out)["notes"]), out


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [("model", "layers", 10**9), ("training", "steps", 10**12), ("training", "steps", 10**7 + 1)],
)
def test_a_plan_of_endless_work_ends_nothing(forged: Forged, part: str, key: str, value: int) -> None:
    code, out, _ = forged(_on("plan", lambda plan: plan["work"][part].update({key: value})), "seal", "--json")
    assert code == 4 and has_words(contradictions(out)[0], "plan.json: ", f"'work.{part}.{key}'", f"found {value},")


@pytest.mark.parametrize("peak", [0, -1.0, 5e-324, 1e300])
def test_a_plan_with_a_value_that_no_plan_has_is_no_fault_of_the_platform(forged: Forged, peak: float) -> None:
    code, out, _ = forged(_on("plan", lambda plan: plan["peak"].update(tflops=peak)), "seal", "--json")
    assert code == 4 and has_words(contradictions(out)[0], "plan.json: ", "'peak.tflops'", f"found {peak},")


def test_a_plan_that_is_none_is_named(forged: Forged, tmp_path: Path) -> None:
    code, out, _ = forged(_on("plan", lambda plan: plan.pop("work")), "seal", "--json")
    assert code == 4 and has_words(contradictions(out)[0], "plan.json: ", "'work': missing")
    assert str(tmp_path / "run") not in out
