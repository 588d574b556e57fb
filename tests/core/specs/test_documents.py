"""Documents: what is wrong in a file is said with file, key, found and expected; equal values have equal digests."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from changed_documents import TINY, written
from levelfield.errors import DocumentError
from levelfield.node.file_sizes import MAX_BYTES_BY_KIND
from levelfield.specs.base import LATER, MAX_FAULTS, Document, Value, dump, load, parse
from levelfield.specs.case import Case
from levelfield.specs.derivation import Extension
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.suite import Suite
from levelfield.specs.tuning import Tuning, TuningFile
from levelfield.specs.vendor import VendorFile
from plans import PLUGINS, ROOT
from pydantic import Field

P = TypeVar("P", bound=Value)
KINDS: dict[str, type[Document]] = {
    "configs/cases/*.yaml": Case,
    "configs/suites/*.yaml": Suite,
    "vendors/*/vendor.yaml": VendorFile,
    "vendors/*/tuning/*.yaml": TuningFile,
    "models/*/implementation.yaml": ImplementationFile,
}


def kind_of(kind: type[Document], path: Path) -> type[Document]:
    """A case's file holds a case or what it changes of another one."""
    return Extension if kind is Case and "\nextends: " in path.read_text() else kind


# Computed by the version before LATER existed.
TINY_DIGEST = "sha256:b21d5277b76f38dfbb763a01394c73598654625c6fd15fc240a2e0f146a6a015"
TINY_SMOKE_DIGEST = "sha256:f7375828000e1213a3838f965f3692573245e47312ce0e8ee62e04f4f3c76b6f"

SHIPPED = [
    (kind_of(kind, path), path)
    for root in (ROOT, PLUGINS)
    for glob, kind in KINDS.items()
    for path in sorted(root.glob(glob))
]


def refusal(path: Path, kind: type[Document] = Case) -> str:
    with pytest.raises(DocumentError) as error:
        load(kind, path)
    return str(error.value)


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=[f"{p.parent.name}/{p.name}" for _, p in SHIPPED])
def test_every_shipped_document_loads_and_reads_back(kind: type[Document], path: Path, tmp_path: Path) -> None:
    document = load(kind, path)
    copy = tmp_path / "copy.json"
    copy.write_text(dump(document))
    assert load(kind, copy) == document


def test_there_are_documents_of_every_kind() -> None:
    assert {kind for kind, _ in SHIPPED} == {*KINDS.values(), Extension}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layer": 2}, "key 'model.layer': unknown key (found 2); nearest: layers; all: activation, attention"),
        ({"colour": "red"}, "key 'colour': unknown key (found 'red'); known: acceptance, data, evidence, limits"),
        ({"training.seed": None}, "key 'training.seed': missing; it is required"),
        ({"model": None}, "key 'model': missing"),
        ({"model.layers": "many"}, "key 'model.layers': found 'many', expected a whole number, without a unit"),
        ({"model.layers": True}, "key 'model.layers': found True, expected a whole number"),
        ({"model.layers": "2"}, "key 'model.layers': found '2', expected a whole number"),
        ({"model.norm_eps": True}, "key 'model.norm_eps': found True, expected a number"),
        ({"model.bias": 1}, "key 'model.bias': found 1, expected true or false"),
        ({"model.bias": "yes"}, "key 'model.bias': found 'yes', expected true or false"),
        ({"evidence": {"gradient_steps": [True]}}, "key 'evidence.gradient_steps.0': found True, expected a whole"),
        ({"smoke.model.layers": True}, "document: at scale smoke: model.layers: found True, expected a whole number"),
        ({"model.layers": 0}, "key 'model.layers': found 0, expected at least 1"),
        ({"model.init_std": float("nan")}, "key 'model.init_std': found nan, expected a finite number"),
        ({"training.gradient_clip": float("inf")}, "key 'training.gradient_clip': found inf"),
        ({"training.precision": "fp12"}, "key 'training.precision': found 'fp12', expected 'fp32'"),
        ({"training": [1, 2]}, "key 'training': found [1, 2], expected a mapping"),
        ({"schema": "levelfield.case/9"}, "key 'schema': found 'levelfield.case/9', expected 'levelfield.case/1'"),
        ({"schema": "levelfield.suite/1"}, "key 'schema': found 'levelfield.suite/1', expected 'levelfield.case/1'"),
        ({"schema": None}, "key 'schema': found None, expected 'levelfield.case/1'"),
    ],
)
def test_a_wrong_document_names_file_key_found_and_expected(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, change)
    assert refusal(path).startswith(f"{path}: {message}")


def test_a_misspelt_key_is_named_beside_a_missing_one_in_each_part(tmp_path: Path) -> None:
    for key, nearest in (("modell", "model"), ("training.step", "steps"), ("smoke.model.layer", "layers")):
        missing, misspelt = refusal(written(tmp_path, {"title": None, key: 2})).splitlines()
        assert missing.endswith("key 'title': missing; it is required")
        assert key.removeprefix("smoke.") in misspelt and f"unknown key (found 2); nearest: {nearest}" in misspelt, key


def test_every_wrong_key_is_named_at_once(tmp_path: Path) -> None:
    lines = refusal(written(tmp_path, {"model.layers": 0, "training.seed": None})).splitlines()
    assert len(lines) == 2 and "model.layers" in lines[0] and "training.seed" in lines[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.heads": 3}, "hidden_size 16 is not divisible by heads 3"),
        ({"model.kv_heads": 3}, "heads 4 is not divisible by kv_heads 3"),
        ({"model.rope_base": 10000.0}, "rope_base is given exactly when positions is 'rope'"),
        ({"model.positions": "rope"}, "rope_base is given exactly when positions is 'rope'"),
        ({"training.precision": "fp16"}, "precision fp16 needs loss_scale"),
        ({"training.schedule.min_lr": 1.0}, "min_lr: found 1.0, expected at most peak_lr 0.001"),
        ({"training.schedule.warmup_steps": 24}, "warmup_steps: found 24, expected below decay_steps 24"),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_both(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    assert message in refusal(written(tmp_path, change))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "found list, expected a mapping"),
        ("just words\n", "found str, expected a mapping"),
        ("", "found NoneType, expected a mapping"),
        ("a: 1\na: 2\n", "found key 'a' twice"),
        ("outer:\n  b: 1\n  c: 2\n  b: 3\n", "found key 'b' twice"),
        ("a: [1, 2\n", "not valid yaml"),
    ],
)
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(text)
    error = refusal(path)
    assert error.startswith(f"{path}: ") and message in error and "\n" not in error


def test_a_twice_written_key_is_refused_in_json_too(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text('{"schema": "levelfield.case/1", "name": "a", "name": "b"}')
    assert re.search(r"'name' twice", refusal(path))


def test_merge_keys_are_no_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        "schema: levelfield.suite/1\ntitle: t\nentries:\n"
        "  - &a {case: 'x:torch', scale: smoke}\n  - {<<: *a, case: 'y:torch'}\n"
    )
    assert [(e.case, e.scale) for e in load(Suite, path).entries] == [("x:torch", "smoke"), ("y:torch", "smoke")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.yaml", None, "cannot be read: No such file or directory"),
        ("", None, "found a folder, expected a regular file"),
        ("latin.yaml", b"schema: caf\xe9\n", "not UTF-8 text: byte 11"),
        ("broken.json", b'{"a": ', "not valid json"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    error = refusal(path)
    assert error.startswith(f"{path}: ") and message in error


def test_equal_values_have_equal_fingerprints_whatever_their_file(tmp_path: Path) -> None:
    case = load(Case, TINY)
    copy = tmp_path / "other order.json"
    copy.write_text(json.dumps(dict(reversed(json.loads(dump(case)).items()))))
    assert load(Case, copy).fingerprint() == case.fingerprint()


def test_any_changed_value_changes_the_fingerprint(tmp_path: Path) -> None:
    case = load(Case, TINY)
    changes = ({"training.seed": 43}, {"model.norm_eps": 1.1e-5}, {"title": "another"}, {"smoke.training.steps": 13})
    fingerprints = [load(Case, written(tmp_path, change)).fingerprint() for change in changes]
    assert len({case.fingerprint(), *fingerprints}) == 1 + len(changes)


class Earlier(Value):
    size: int


class Later(Earlier):
    added: int = Field(default=7, json_schema_extra=LATER)


class Holder(Value, Generic[P]):
    one: P
    many: tuple[P, ...]
    named: dict[str, P]


@pytest.mark.parametrize("added", [7, 8])
def test_a_field_that_is_added_later_changes_a_digest_only_where_it_is_used(added: int) -> None:
    later, earlier = Later(size=1, added=added), Earlier(size=1)
    holder = Holder[Later](one=later, many=(later, later), named={"a": later})
    before = Holder[Earlier](one=earlier, many=(earlier, earlier), named={"a": earlier})
    for new, old in ((later, earlier), (holder, before)):
        assert (new.fingerprint() == old.fingerprint()) is (added == 7)
    assert json.loads(later.to_json())["added"] == added, "a document shows all its fields"


def test_a_case_keeps_its_digest_until_it_limits_disturbance(tmp_path: Path) -> None:
    case = load(Case, TINY)
    dumped = case.model_dump(mode="json")
    del dumped["window"]["disturbance_limit"], dumped["parameters"]
    for choice in dumped["tuning"].values():
        del choice["recompute_layers"], choice["graph"]
    text = json.dumps(dumped, sort_keys=True, separators=(",", ":"))
    assert case.fingerprint() == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    same, other = (load(Case, written(tmp_path, {"window.disturbance_limit": limit})) for limit in (0.1, 0.2))
    assert same.fingerprint() == case.fingerprint() != other.fingerprint()
    works = [variant.work("smoke").fingerprint() for variant in (case, same, other)]
    assert works[0] == works[1] != works[2]


def test_documents_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Tuning().micro_batch = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"launch.argv": ["{python}", "{host}"]}, "unknown placeholder ['host'] in '{host}'; known: ["),
        ({"launch.environment": {"A": "{gpu}"}}, "unknown placeholder ['gpu']"),
        *(({"launch.argv": ["a", text]}, "found '") for text in ("{", "}", "{python", "a}b", "{rank:d}", "{rank!r}")),
        *(({"launch.argv": ["a", text]}, "unknown placeholder") for text in ("{}", "{0}", "{rank.x}", "{rank[0]}")),
        *(({"launch.environment": {"A": text}}, text) for text in ("{", "}", "{}", "{0}", "{rank.x}")),
        *(({"reaches": {"cpu": {"device": "a", "backend": "b", "environment": {"A": text}}}}, text) for text in "{}"),
        ({"launch.peak_probe": ["{python}", "{rank}"]}, "unknown placeholder ['rank']"),
        ({"launch.environment": {"A=B": "1"}}, "found the name 'A=B', expected letters"),
        ({"launch.argv": ["{python}", "a\0b"]}, "found a NUL character"),
        ({"launch.argv": []}, "key 'launch.argv': found []"),
        ({"requirements.cpu.packages": ["numpy>=2"]}, "packages: found numpy>=2, expected every version pinned"),
        ({"architecture": ["bert"]}, "key 'architecture.0': found 'bert'"),
    ],
)
def test_an_implementation_that_cannot_be_launched_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, change, PLUGINS / "models/fake/implementation.yaml")
    assert message in refusal(path, ImplementationFile)


def test_braces_that_are_written_twice_are_braces(tmp_path: Path) -> None:
    change = {"launch.environment": {"A": '{{"rank": {rank}}}'}}
    path = written(tmp_path, change, PLUGINS / "models/fake/implementation.yaml")
    assert load(ImplementationFile, path).launch.environment["A"].format(rank=3) == '{"rank": 3}'


# ---- many errors, and those that follow from others


def test_of_very_many_errors_the_first_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, {f"x{number}": number for number in range(2_000)})
    lines = refusal(path, Case).splitlines()
    assert len(lines) == MAX_FAULTS + 1 and lines[-1] == f"{path}: and {2_000 - MAX_FAULTS:,} more"


def test_many_values_of_a_wrong_type_are_cut_too(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, {"evidence.gradient_steps": ["1"] * 9_000}), Case)
    assert f"and {9_000 - MAX_FAULTS:,} more" in text and len(text) < 10_000


def test_a_list_whose_entries_are_wrong_is_not_called_too_short() -> None:
    class Part(Value):
        a: int

    class Whole(Value):
        parts: tuple[Part, ...] = Field(min_length=1)

    with pytest.raises(DocumentError) as caught:
        parse(Whole, {"parts": [{}]}, "x")
    assert str(caught.value) == "x: key 'parts.0.a': missing; it is required"
    with pytest.raises(DocumentError, match=r"^x: key 'parts': found \[\], expected at least 1 entries$"):
        parse(Whole, {"parts": []}, "x")


def test_a_long_schema_key_or_value_is_cut() -> None:
    long = "x" * 300_000
    named = {"schema": "levelfield.case/1"}
    for content in ({"schema": long}, {**named, long: 1}, {**named, "name": [long]}):
        with pytest.raises(DocumentError) as caught:
            parse(Case, content, "x")
        assert len(str(caught.value)) < 5_000


def test_every_document_of_a_file_has_a_largest_size() -> None:
    """These are lines of a store, or rows of it."""
    rows = {"event", "expectation", "finding"}
    sources = (ROOT / "platform").rglob("*.py")
    kinds = {
        kind for path in sources for kind in re.findall(r'^    KIND: ClassVar\[str\] = "(.+)"', path.read_text(), re.M)
    }
    assert len(kinds) > 20 and kinds - rows <= MAX_BYTES_BY_KIND.keys()


# ---- digests


def test_the_digest_of_a_case_is_that_of_earlier_versions() -> None:
    """A new field of a case that is red here is marked LATER."""
    case = load(Case, TINY)
    assert case.fingerprint() == TINY_DIGEST
    assert case.work("smoke").fingerprint() == TINY_SMOKE_DIGEST
