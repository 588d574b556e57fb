"""Bundles of recorded runs, whole and forged: each forger goes as far as its name says."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from levelfield.cli.main import main
from levelfield.evidence.bundle_archive import make_archive
from levelfield.evidence.bundle_reader import RESULT
from levelfield.judge.collector import collect
from levelfield.judge.verdict import Redaction
from levelfield.rundir.seal import outcome_digest, seal_finding
from levelfield.specs.base import dump, parse, sha256_of
from levelfield.specs.bundle import MANIFEST, BundledFile, BundledRun, Manifest
from levelfield.specs.paths import RunPaths
from plans import PLUGINS
from recorded_runs import SECOND_NS, Event, edit, seal_again

Members = dict[str, bytes]
HOST, USER, SECRET = "gpu-node-07", "alice", "hf_abcdefghijklmnopqrstuv"
BEGAN = 1_767_323_050  # 2026-01-02T03:04:10Z, five seconds after the time in the run's id


def enrich(run: RunPaths) -> None:
    """Give a recorded run what a real one has too: provenance, times of day, and logs that name people and places."""

    def with_time_of_day(lines: list[Event]) -> list[Event]:
        first = lines[0]["time_ns"]
        return [{**line, "wall_ns": BEGAN * SECOND_NS + line["time_ns"] - first} for line in lines]

    provenance = {
        "time": "2026-01-02T03:04:09+00:00",
        "machine": {"name": HOST, "os": "Linux", "kernel": "6.1", "processor": "a processor", "network": []},
        "environment_packages": {"numpy": "2.4"},
        "vendor_software": {"driver": "1.0"},
        "inherited": {"LD_LIBRARY_PATH": f"/home/{USER}/lib:/usr/lib", "OMP_NUM_THREADS": "2", "SITE": "blue-whale"},
    }
    run.provenance.write_text(json.dumps(provenance))
    log = (
        f"{USER}@{HOST}:/home/{USER}/work$ loading /data/of {USER}/set\nAPI_KEY=s3cr3tvalue\nHF={SECRET}\n"
        "device GPU-12345678-1234-1234-1234-123456789abc\n-----BEGIN OPENSSH PRIVATE KEY-----\nabcdef\n"
    )
    (run.logs / "rank0.log").write_text(log)
    edit(run.telemetry, with_time_of_day)


def bundled(path: Path, *runs: RunPaths) -> Path:
    """Write a bundle by the command, and return its path."""
    assert (
        main(["evidence", "bundle", *(str(run.root) for run in runs), "--output", str(path), "--plugins", str(PLUGINS)])
        == 0
    )
    return path


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def only_run(members: Members) -> str:
    """The name before every file of the only run: `runs/<id>/`."""
    return next(name for name in members if name.endswith("/plan.json")).removesuffix("plan.json")


def with_manifest(members: Mapping[str, bytes], change: Callable[[Manifest], Manifest]) -> Members:
    """The members with another manifest, whose own digest is right."""
    made = change(parse(Manifest, json.loads(members[MANIFEST]), "manifest"))
    return {**members, MANIFEST: dump(made.model_copy(update={"digest": made.content_digest})).encode()}


def rehashed(members: Mapping[str, bytes]) -> Members:
    """A forger who makes the manifest anew: its entries agree with the members, and the seal is left."""

    def anew(manifest: Manifest) -> Manifest:
        runs = {name: _entry(run, name, members) for name, run in manifest.runs.items()}
        return manifest.model_copy(update={"runs": runs})

    return with_manifest(members, anew)


def _entry(run: BundledRun, name: str, members: Mapping[str, bytes]) -> BundledRun:
    files = {}
    for member, content in members.items():
        if not member.startswith(f"runs/{name}/"):
            continue
        short, digest = member.removeprefix(f"runs/{name}/"), sha256_of(content)
        before = run.files.get(short)
        if short == "outcome.json":
            files[short] = BundledFile(original=outcome_digest(json.loads(content)), stored=digest)
        elif before is not None and not before.is_whole:  # redacted
            files[short] = before.model_copy(update={"stored": digest})
        else:
            files[short] = BundledFile(original=digest, stored=digest)
    return run.model_copy(update={"files": files})


def resealed(members: Mapping[str, bytes], folder: Path, restate: bool = False) -> Members:
    """A forger who makes the seal and the manifest anew. restate: and the result too, so that all agrees."""
    run = only_run(dict(members))
    paths = RunPaths(folder / run.split("/")[1])
    for name, content in members.items():
        if name.startswith(run) and not name.endswith(f"/{RESULT}"):
            path = paths.root / name.removeprefix(run)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    seal_again(paths)
    made = {**members, f"{run}outcome.json": paths.outcome.read_bytes()}
    finding = seal_finding(paths)
    if restate:
        made[f"{run}{RESULT}"] = dump(collect(paths, redaction=Redaction(finding, None))).encode()

    def anew(manifest: Manifest) -> Manifest:
        name, old = next(iter(manifest.runs.items()))
        whole = {file: BundledFile(original="", stored=None) for file in old.files}
        entry = _entry(old.model_copy(update={"files": {}, "seal": finding, "software": None}), name, made)
        assert whole.keys() >= {RESULT}
        return manifest.model_copy(update={"runs": {name: entry}, "replacements": ()})

    return with_manifest(made, anew)


def written(path: Path, members: Mapping[str, bytes]) -> Path:
    path.write_bytes(make_archive(members))
    return path


def raw_archive(entries: list[tuple[zipfile.ZipInfo | str, bytes]]) -> bytes:
    """An archive with any names and attributes, in this order."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in entries:
            info = name if isinstance(name, zipfile.ZipInfo) else member(name)
            made.writestr(info, content)
    return out.getvalue()


def member(name: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.external_attr, info.create_system, info.compress_type = mode << 16, 3, zipfile.ZIP_DEFLATED
    return info
