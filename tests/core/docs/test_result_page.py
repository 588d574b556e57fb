"""docs/result.md says what the model says, about every field of result.json."""

from __future__ import annotations

from levelfield.specs.result import Result
from result_page import PAGE, SHARED, fields, is_number, meaning, page, unit

FIELDS = list(fields(Result))


def test_the_page_is_what_the_model_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `.venvs/dev/bin/python tools/result_page.py`"


def test_fields_are_found_at_every_depth() -> None:
    paths = {path for path, *_ in FIELDS}
    deep = {"run_id", "layout.data", "throughput.step_seconds.p90", "utilisation[].value", "alignment.layers[].limit"}
    assert deep | {"memory.expectation.measured.reason", "entry.suite"} <= paths


def test_every_field_has_a_meaning_and_every_number_a_unit() -> None:
    for path, model, name, *_ in FIELDS:
        text = meaning(model, name)
        assert text.endswith("."), f"{path}: give the field a description, a sentence"
        assert max(len(sentence.split()) for sentence in text.split(". ")) <= 20, f"{path}: a sentence is too long"
        assert bool(unit(model, name)) == is_number(model.model_fields[name].annotation), f"{path}: unit"


def test_shared_values_are_described_field_by_field() -> None:
    models = {model.__name__: model for _, model, *_ in FIELDS}
    for name, described in SHARED.items():
        assert set(described) == set(models[name].model_fields)
