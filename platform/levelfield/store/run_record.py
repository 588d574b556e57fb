"""Makes the record that a store keeps from a run directory: figures, raw curves, conditions and build.

result.json alone has neither the time nor the node. A run of an earlier version gives what it has.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from pydantic import JsonValue
from pydantic_core import to_json

from levelfield.errors import DocumentError
from levelfield.measure.throughput import step_seconds_from_start
from levelfield.measure.validity import loss_curve
from levelfield.rundir.directory import read_plan
from levelfield.rundir.event_lines import mapping
from levelfield.rundir.raw_files import RawRecords, read_raw, system_of
from levelfield.rundir.seal import seal_finding
from levelfield.specs.base import Document, json_digest, load
from levelfield.specs.free_fields import FREE_FIELDS
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.record import Conditions, Purpose, RunRecord, Series, StoredResult, Subject
from levelfield.specs.result import PRETENDED, Result
from levelfield.specs.step_parts import StepParts
from levelfield.specs.variables import influential_variables, mask_secrets
from levelfield.store.run_traces import run_traces, step_trace, telemetry_summary

UNKNOWN = "unknown"  # the node or the content of a run that recorded none
MACHINE_ID = "machine-id"  # in `identity_rests_on` of provenance, where the system has such an identifier
_RUN_ID_TIME = re.compile(r"(\d{8}T\d{6})Z")

_NUMBER_LIMIT = 2**31  # PostgreSQL's whole numbers
_UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")  # in this form times sort as texts
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it; behind an even number of backslashes
# Folders of every system: a path below them says nothing about a person or a company.
_PUBLIC_FOLDERS = ("/usr/", "/proc/", "/sys/", "/dev/", "/lib/", "/lib64/", "/etc/", "/bin/", "/sbin/")
_PATH = re.compile(r"(?:\bfile://|(?<![\w./~-]))(?:(?:/[\w.@+%=-]+){2,}/?|~/[\w.@+%=/-]+)")
_USER_FOLDER = re.compile(r"/(?:home|Users)/([\w.-]+)")
_MIN_NAME_CHARACTERS = 3  # a host named `vm` tells nothing, and its name is part of other words
_PUBLIC_NAMES = {"root", "user", "users", "localhost", "shared", "public"}


def record_of(
    paths: RunPaths,
    purpose: Purpose = "manual",
    night: str | None = None,
    result: Result | None = None,
    raw: RawRecords | None = None,
    step: StepParts | None = None,
) -> RunRecord:
    """Return the record of a finished run. What is not passed is read from the directory.

    result, step: the result and the parts of a step, where they were just computed from these files. raw: the raw
    files, where they were read already.

    Raises DocumentError for a missing or wrong plan or result, and for a run without a time.
    """
    evidence = result.seal if result and result.seal else seal_finding(paths)
    if result is None and paths.step_parts.exists():
        step = load(StepParts, paths.step_parts)
    plan, result, raw = read_plan(paths), result or load(Result, paths.result), raw or read_raw(paths)
    for path, document in ((paths.result, result), (paths.step_parts, step)):
        if document and document.run_id != plan.run_id:
            raise DocumentError(f"{path}: key 'run_id': found '{document.run_id}', expected '{plan.run_id}'")
    provenance, status, window = raw.provenance, result.status, plan.work.window
    redactor = _text_redactor(plan, provenance)
    return RunRecord(
        run_id=plan.run_id,
        content=evidence.digest or UNKNOWN,
        began=_begin_time(paths, plan, provenance),
        purpose=purpose,
        night=night,
        entry=f"{plan.entry.suite}/{plan.entry.name}" if plan.entry else None,
        evidence=evidence.word,
        evidence_reason=redactor.redact_text(evidence.reason) if evidence.reason else None,
        series=series_of(plan),
        conditions=_conditions(plan, provenance, redactor),
        subject=_subject(plan, result, provenance),
        node=_machine_digest(provenance),
        word=status.word,
        failure=status.failure,
        reason=redactor.redact_text("; ".join(status.reasons)) or None,
        verdict=result.alignment.verdict,
        window=result.window,
        step_seconds=step_seconds_from_start(raw.steps, raw.first_step_start_ns, window.first_step, window.last_step),
        losses=_losses(raw),
        telemetry=telemetry_summary(plan, raw),
        result=StoredResult(
            {
                **redactor.redact_value({"schema": Result.schema_name(), **result.model_dump(mode="json")}),
                "inherited": redactor.redact_variables(result.inherited),
            }
        ),
        traces=run_traces(plan, raw, step_trace(step, redactor.redact_text) if step else None),
    )


def series_of(plan: Plan) -> Series:
    """Return the series that a run of this plan belongs to."""
    hardware, tuning = plan.hardware, plan.tuning
    return Series(
        case=plan.case,
        work=plan.work_digest,
        corpus=plan.corpus.digest,
        scale=plan.scale,
        framework=plan.implementation.framework,
        vendor=hardware.vendor,
        chip=hardware.chip.name,
        device_is=hardware.chip.device_is,
        nodes=hardware.nodes,
        devices=plan.world_size,
        precision=plan.work.training.precision,
        accumulation=plan.accumulation,
        runtime=plan.runtime,
        further_version=plan.implementation.version if plan.implementation.is_further else None,
        **{name: getattr(tuning, name) for name in FREE_FIELDS},
    )


def _conditions(plan: Plan, provenance: dict[str, Any], redactor: TextRedactor) -> Conditions:
    system, machine = system_of(provenance), mapping(provenance.get("machine"))
    cores, memory = machine.get("usable_cores"), machine.get("memory_bytes")
    software = {k: v for k, v in mapping(provenance.get("vendor_software")).items() if k != "error"}
    inherited = mapping(provenance.get("inherited", provenance.get("variables")))
    # Only names that are known to matter: any other changes every night and would start a new series of nights.
    relevant = influential_variables({name: text for name, text in inherited.items() if isinstance(text, str)})
    implementation, hardware, tuning = plan.implementation, plan.hardware, plan.tuning
    variables = {**relevant, **implementation.environment, **hardware.environment, **tuning.environment}
    return Conditions(
        software={name: redactor.redact_text(text) for name, text in software.items() if isinstance(text, str)},
        kernel=system.kernel if system else None,
        os=system.os if system else None,
        processor=system.processor if system else None,
        cores=cores if isinstance(cores, int) else None,
        memory_gib=round(memory / 2**30) if isinstance(memory, int) else None,
        engine=system.engine if system else None,
        variables=redactor.redact_variables(variables),
    )


def _subject(plan: Plan, result: Result, provenance: dict[str, Any]) -> Subject:
    source, packages = mapping(provenance.get("source")), provenance.get("environment_packages")
    image, commit, changed = mapping(provenance.get("image")), source.get("commit"), source.get("changed_files")
    return Subject(
        framework_version=result.framework_version,
        environment=plan.environment.digest or None,
        packages=json_digest(packages) if isinstance(packages, dict) else None,
        image=str(image["id"]) if image.get("id") else None,
        # of all code that a result rests on; a plan of an earlier version has that of the framework's folder alone
        implementation=plan.implementation.rests_on or plan.implementation.digest,
        commit=commit if isinstance(commit, str) else None,
        is_dirty=bool(changed) if isinstance(changed, list) else None,
        platform_version=plan.platform_version,
        formulas=tuple(sorted({used.formula for used in result.utilisation})),
    )


def _machine_digest(provenance: dict[str, Any]) -> str:
    """Return the digest of the machine, which is the same for each number of its devices.

    A container without an identifier may have a new name each time. There the devices' own identities tell the machine,
    where all of them have one; else the name does. Nothing can be read from the digest.
    """
    machine, devices = mapping(provenance.get("machine")), provenance.get("devices")
    name, rests_on = machine.get("identity", machine.get("name")), machine.get("identity_rests_on")
    identities = [mapping(device).get("identity") for device in devices] if isinstance(devices, list) else []
    if not (isinstance(name, str) and name):
        return UNKNOWN
    has_no_machine_id = isinstance(rests_on, list) and MACHINE_ID not in rests_on
    known_identities = sorted(identity for identity in identities if isinstance(identity, str))
    if has_no_machine_id and identities and len(known_identities) == len(identities):
        return json_digest(["devices", *known_identities])
    return json_digest(["machine", name])


def _begin_time(paths: RunPaths, plan: Plan, provenance: dict[str, Any]) -> str:
    """Return when the run began, in UTC. Without provenance: when it was planned, by its id."""
    if isinstance(text := provenance.get("time"), str):
        try:
            moment = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
        except ValueError:
            moment = datetime.min
        if moment.tzinfo is None:
            raise DocumentError(
                f"{paths.provenance}: key 'time': found '{text}', expected a time with its zone: "
                "2026-11-22T03:04:05+00:00"
            )
        return moment.astimezone(timezone.utc).isoformat(timespec="seconds")
    if stamp := _RUN_ID_TIME.match(plan.run_id):
        return datetime.strptime(stamp[1], "%Y%m%dT%H%M%S").replace(tzinfo=timezone.utc).isoformat()
    raise DocumentError(
        f"{paths.plan}: key 'run_id': found '{plan.run_id}', expected a time such as 20261122T030405Z_..."
    )


def _losses(raw: RawRecords) -> tuple[float | None, ...]:
    """Return the loss of each step from step 1; null where none was reported, or it was not finite."""
    finite = {step: loss for step, loss in loss_curve(raw.steps).items() if math.isfinite(loss)}
    return tuple(finite.get(step) for step in range(1, raw.steps_done + 1))


def _text_redactor(plan: Plan, provenance: dict[str, Any]) -> TextRedactor:
    name, series = mapping(provenance.get("machine")).get("name"), series_of(plan)
    hosts = [name, name.partition(".")[0]] if isinstance(name, str) else []
    public_words = [*_enum_words(), *(text for text in series.model_dump().values() if isinstance(text, str))]
    return TextRedactor(
        hosts, public_words, (plan.implementation.folder, plan.environment.folder, plan.environment.python)
    )


@lru_cache(maxsize=1)
def _enum_words() -> list[str]:
    """Return the words of result.json's enumerations, such as `flash`: a name that is equal to one stays as it is."""
    schema = json.dumps(Result.model_json_schema())
    return [word for words in re.findall(r'"enum": (\[[^]]*\])', schema) for word in json.loads(words)]


def require_storable(record: RunRecord, origin: str) -> RunRecord:
    """Return the record. Raises DocumentError for a text, a number or a time that no database can hold or sort, and for
    a run on pretended devices, which no series may have."""
    if record.failure == PRETENDED:
        raise DocumentError(f"{origin}: found a run on pretended devices, expected real ones; no store takes it")
    require_storable_texts(record, origin)
    return require_storable_numbers(record, origin)


def require_storable_texts(document: Document, origin: str) -> None:
    """Raise DocumentError for a text that no database can hold."""
    try:
        text = document.model_dump_json()
    except ValueError:  # half of a pair of characters, which has no form in UTF-8
        raise DocumentError(f"{origin}: found a text that is not Unicode, expected whole characters") from None
    if _NUL_ESCAPE.search(text):
        raise DocumentError(f"{origin}: found a NUL character in a text, expected none")


def require_storable_numbers(record: RunRecord, origin: str) -> RunRecord:
    """Return the record. Raises DocumentError for a number or a time that no database can hold or sort."""
    series, window = record.series, record.window
    numbers = {name: getattr(series, name) for name in ("nodes", "devices", "micro_batch", "accumulation")}
    for name, value in {**numbers, "window": max(window, key=abs)}.items():
        if not abs(value) < _NUMBER_LIMIT:
            raise DocumentError(f"{origin}: key '{name}': found {value}, expected less than {_NUMBER_LIMIT:,}")
    try:
        is_time = bool(_UTC_TIME.fullmatch(record.began) and datetime.fromisoformat(record.began))
    except ValueError:
        is_time = False
    if not is_time:
        raise DocumentError(
            f"{origin}: key 'began': found '{record.began}', expected UTC such as 2026-11-22T03:04:05+00:00"
        )
    return record


class TextRedactor:
    """Replaces the names of hosts and users, and paths. hosts: names of the machine.

    public_words: words of the run; a host or a user with such a name stays. texts: paths of the run, which show the
    names of users.
    """

    def __init__(self, hosts: Iterable[str], public_words: Iterable[str], texts: Iterable[str] = ()) -> None:
        public = _PUBLIC_NAMES | {word.lower() for word in public_words}
        users = {name for text in texts for name in _USER_FOLDER.findall(text)}
        self._words = {
            name: word
            for word, names in (("(user)", users), ("(host)", hosts))
            for name in names
            if len(name) >= _MIN_NAME_CHARACTERS and name.lower() not in public
        }
        names = "|".join(map(re.escape, sorted(self._words, key=len, reverse=True)))
        self._names = re.compile(rf"(?<![\w.-])(?:{names})(?![\w-])") if names else None

    def redact_text(self, text: str) -> str:
        """Return the text without private words."""
        if "/" in text:
            text = _PATH.sub(_redact_path, text)
        return self._names.sub(lambda match: self._words[match[0]], text) if self._names else text

    def redact_value(self, value: JsonValue) -> Any:
        """Return a JSON value with all its texts as `redact_text` gives them. Keys stay."""
        json_text = to_json(value).decode()
        is_public = (
            "\\" not in json_text
            and not _PATH.search(json_text)
            and not (self._names and self._names.search(json_text))
        )
        return value if is_public else self._replace(value)

    def _replace(self, value: JsonValue) -> Any:
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return {key: self._replace(item) for key, item in value.items()}
        return [self._replace(item) for item in value] if isinstance(value, list) else value

    def redact_variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return variables with masked secrets, and a digest in place of a value that holds a private word."""
        pairs = {name: (text, self.redact_text(text)) for name, text in mask_secrets(variables).items()}
        digests = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, (text, _) in pairs.items()}
        return {
            name: public if public == text else f"(private, sha256 {digests[name]})"
            for name, (text, public) in pairs.items()
        }


def _redact_path(match: re.Match[str]) -> str:
    """Return `(path)`, with the file's name where it has a suffix and lies deeper than a user's folder."""
    path = match[0]
    if path.startswith(_PUBLIC_FOLDERS):
        return path
    name = path.rstrip("/").rpartition("/")[2]
    is_deep = (path.count("/") > 2 or path.startswith("~")) and re.search(r"[^.]\.\w{1,5}$", name)
    return f"(path)/{name}" if is_deep else "(path)"
