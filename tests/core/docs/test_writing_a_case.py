"""docs/writing-a-case.md: its examples load, its tables name every key, and wrong changes of them are refused."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import DocumentError
from levelfield.specs.case import Case
from levelfield.specs.derivation import Extension
from pydantic import BaseModel

PAGE = (Path(__file__).resolve().parents[3] / "docs/writing-a-case.md").read_text(encoding="utf-8")
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
REFUSALS = [
    (
        "model.rope_scaling: {kind: llama3, factor: 8}",
        "rope_scaling llama3: missing high_factor, low_factor, original_length",
    ),
    ("training.optimizer.name: sgd", "key 'training.optimizer.name': found 'sgd', expected 'adamw'"),
    ("training.precision: fp16", "precision fp16 needs loss_scale"),
    ("model.family: My Llama", "key 'model.family': found 'My Llama', expected a text that matches ^[a-z]"),
    ("model.positions: learned", "rope_base is given exactly when positions is 'rope'"),
    ("model.heads: 30", "hidden_size 2048 is not divisible by heads 30"),
    ("window.last_step: 200", "window 21..200 does not lie within the 100 steps"),
    ("evidence.gradient_steps: [50]", "evidence.gradient_steps [50] do not lie before the window, which starts at 21"),
    ("smoke.model.vocab_size: 32", "data.alphabet 64 is above vocab_size 32"),
    ("tuning.full.precision: fp8", "'precision' is locked, the case fixes it"),
    ("schema: levelfield.case/2", "found 'levelfield.case/2', expected 'levelfield.case/1'"),
]


def written(tmp_path: Path, documents: list[dict[str, Any]]) -> Path:
    folder = tmp_path / "configs" / "cases"
    folder.mkdir(parents=True)
    for document in documents:
        (folder / f"{document['name']}.yaml").write_text(yaml.safe_dump(document))
    return tmp_path


def keys(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every key of a document; of a nested value its keys, of a mapping the key alone."""
    for name, field in model.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        inner = next((t for t in types if isinstance(t, type) and issubclass(t, BaseModel)), None)
        yield from keys(inner, f"{before}{name}.") if inner else [f"{before}{name}"]


def test_the_examples_load_and_one_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, EXAMPLES)
    registry = Registry([folder])
    assert registry.case("my_llama").training.global_batch == 256
    assert registry.case("my_llama_b512").training.global_batch == 512
    assert main(["--case", "my_llama:torch:cpu", "--plugins", str(folder), "--scale", "smoke", "--dry-run"]) == 0
    assert "my_llama" in capsys.readouterr().out


def test_every_key_is_on_the_page() -> None:
    of_case, of_extension = list(keys(Case)), list(keys(Extension))
    assert len(of_case) > 40 and len(of_extension) > 3
    assert [key for key in of_case + of_extension if f"`{key.removeprefix('tuning.')}`" not in PAGE] == []


def test_no_key_on_the_page_was_invented() -> None:
    rows = re.findall(
        r"^\| `((?:model|training|data|window|acceptance|evidence|limits)\.[\w.]+)` \|", PAGE, re.MULTILINE
    )
    assert set(rows) <= {*keys(Case), "training.loss_scale"}


@pytest.mark.parametrize(("change", "message"), REFUSALS, ids=[change for change, _ in REFUSALS])
def test_a_change_of_the_example_is_refused_with_key_and_value(tmp_path: Path, change: str, message: str) -> None:
    path, value = change.split(": ", 1)
    document = copy.deepcopy(EXAMPLES[0])
    *above, last = path.split(".")
    place = document
    for key in above:
        place = place[key]
    place[last] = yaml.safe_load(value)
    with pytest.raises(DocumentError) as refused:
        Registry([written(tmp_path, [document])]).case("my_llama")
    assert message in str(refused.value)
