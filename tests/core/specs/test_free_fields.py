"""The table of free fields, and what walks it: types, options, sentences."""

from __future__ import annotations

from typing import get_args

import pytest
from levelfield.cli.command_line import parse_command_line
from levelfield.cli.run_entries import tuning_choice
from levelfield.errors import DocumentError
from levelfield.specs.base import parse
from levelfield.specs.free_fields import FREE_FIELDS, RECOMPUTE_LAYERS, option_name
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import LATER_FIELDS, FreeFields, Tuning, TuningChoice

OTHER = {
    "layout": Layout(data=2), "micro_batch": 3, "virtual_pipeline": 2, "threads": 4, "recompute": "full",
    RECOMPUTE_LAYERS: 1, "compile": True, "graph": True, "attention": "flash_attn",
}  # fmt: skip


def test_each_field_has_its_type_and_its_choice() -> None:
    assert set(FREE_FIELDS) == set(FreeFields.model_fields) == set(TuningChoice.model_fields) - {"environment"}
    for name, field in FREE_FIELDS.items():
        annotation = TuningChoice.model_fields[name].annotation
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        assert (get_args(kinds[0]) if isinstance(field.value_type, tuple) else kinds[0]) == field.value_type, name


def test_a_run_at_its_defaults_differs_in_nothing_and_names_no_later_field() -> None:
    assert FreeFields().non_default_fields == ()
    words = " ".join(FreeFields().options)
    assert {RECOMPUTE_LAYERS, "graph"} == LATER_FIELDS and not [
        name for name in LATER_FIELDS if option_name(name) in words
    ]
    assert "--no-compile" in words and "--micro-batch 1" in words and "--threads" not in words


@pytest.mark.parametrize("name", FREE_FIELDS)
def test_the_options_of_a_value_are_read_back_as_that_value(name: str) -> None:
    changes = {name: OTHER[name], **({"recompute": "full"} if name == RECOMPUTE_LAYERS else {})}
    tuning = Tuning(**changes)
    assert set(tuning.non_default_fields) == set(changes)
    choice = tuning_choice(parse_command_line(["run", "--case", "tiny:fake", *tuning.options]))
    assert getattr(choice, name) == (str(OTHER[name]) if name == "layout" else OTHER[name])


def test_the_layers_of_a_recomputation_stand_beside_its_kind() -> None:
    values = Tuning(recompute="full", recompute_layers=12).values
    assert values["recompute"] == "full 12" and RECOMPUTE_LAYERS not in values


def test_a_manifest_offers_only_fields_of_some_frameworks() -> None:
    content = {"framework": "fake", "free_fields": ["compile"]}
    with pytest.raises(DocumentError, match=r"'compile'.*\bgraph\b"):
        parse(ImplementationFile, {"schema": ImplementationFile.schema_name(), **MANIFEST, **content}, "f")


MANIFEST = {
    "title": "x", "version": "1.0", "architecture": [], "precisions": {"cpu": ["fp32"]}, "parallelism": {"cpu": []},
    "recompute": ["none"], "requirements": {}, "launch": {"argv": ["{python}"]},
}  # fmt: skip
