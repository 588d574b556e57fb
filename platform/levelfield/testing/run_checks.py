"""Checks with whole runs and replayed tools: telemetry, cleanup, and the status of failed runs."""

from __future__ import annotations

from collections.abc import Sequence

from levelfield.contracts.readings import SAMPLED
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.rehearsal import rehearse
from levelfield.testing.sample_checks import told
from levelfield.testing.subject import VendorSubject

FAULTS = {"killed": ("failed", "killed"), "nan": ("invalid", None)}


def telemetry(subject: VendorSubject) -> str:
    """Check that a run is valid and that its telemetry holds the recorded values of its devices."""
    run = rehearse(subject, "none")
    status = run.result.status
    if status.word != "valid":
        words = f"{status.word}: {'; '.join(status.reasons)}; {status.evidence}"
        raise Fails(f"the run is {words}", _advice(status.evidence))
    samples = run.samples()
    if {s["index"] for s in samples} != set(run.devices()):
        raise Fails(f"samples of {sorted({s['index'] for s in samples})}, expected one of each device", "")
    values = {(s["index"], field): s[field] for s in samples for field in SAMPLED if s[field] is not None}
    _check_recorded(subject, values, run.devices())
    peak = run.result.memory.device_used_peak.value
    used = [sample["memory_used_bytes"] for sample in samples]
    if peak is not None and peak not in used:
        raise Fails(f"the result's memory is {peak}, which is in no sample of the telemetry", "")
    return f"a valid run, {len(samples)} sample(s), {len(values)} value(s)"


def _advice(evidence: str | None) -> str:
    return "check `environment` of vendor.yaml: every training process gets it" if evidence else ""


def _check_recorded(subject: VendorSubject, values: dict[tuple[int, str], object], devices: Sequence[int]) -> None:
    """Check that the values are exactly the recorded values of these devices."""
    try:
        right = told(subject).values
    except NotApplicable:
        return
    indices = {index for index, _ in values} | set(devices)
    known = {key: value for key, value in right.items() if key[0] in indices and key[1] in SAMPLED}
    if values != known:
        key = next(key for key in {*values, *known} if values.get(key) != known.get(key))
        raise Fails(f"telemetry: device {key[0]}: {key[1]} is {values.get(key)}, recorded {known.get(key)}", "")
    if not values:
        raise Missing("found no value in the telemetry", "compare vendor.yaml with the recording")


def failures(subject: VendorSubject) -> str:
    """Check that a killed rank and a NaN loss give their own status with this vendor."""
    for fault, expected in FAULTS.items():
        status = rehearse(subject, fault).result.status
        found = (status.word, status.failure)
        if found[0] != expected[0] or (expected[1] and found[1] != expected[1]):
            words = f"{found[0]} ({found[1]}): {'; '.join(status.reasons)}; {status.evidence}"
            raise Fails(f"a run with fault '{fault}' is {words}, expected {expected[0]}", _advice(status.evidence))
    return "a killed rank is failed (killed), a NaN invalid"


def cleanup(subject: VendorSubject) -> str:
    """Check that the runs leave no process, and no file outside the run directory."""
    left = [item for fault in ("none", *FAULTS) for item in rehearse(subject, fault).left]
    if left:
        raise Fails(f"left behind: {', '.join(left[:3])}", "end the adapter's processes; write no file on the host")
    return "found no process and no file after the runs"
