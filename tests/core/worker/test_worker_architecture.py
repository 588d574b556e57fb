"""The worker's view of a model's parts: what a job leaves out, and the initial values of experts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levelfield.specs.architecture import GATE_ACTIVATIONS, Model
from levelfield.specs.base import LATER
from levelfield.worker import Initializer, architecture
from levelfield.worker.job import Job, parse
from levelfield.worker.loop import MOST_COUNTERS, counted_steps
from levelfield.worker.parameters import list_parameters
from published_models import MODELS
from worker_jobs import LLAMA, make_job

EXPERTS: dict[str, Any] = dict(
    count=4, chosen=2, ffn_hidden_size=24, shared=0, first_layer=0, every=1,
    router=dict(scores="softmax", normalised=True, scale=1.0, groups=None, auxiliary_loss=0.0, z_loss=0.0, bias_rate=0),
    capacity_factor=None,
)  # fmt: skip


def parsed(**changes: Any) -> architecture.Model:
    return parse(architecture.Model, {**LLAMA, **changes}, "model")


def steps_of(job: Job) -> Sequence[int]:
    return counted_steps(job.model, job.training.steps, job.gradient_steps)


def test_what_a_job_leaves_out_is_what_the_schema_has_as_default() -> None:
    later = {name: field.default for name, field in Model.model_fields.items() if field.json_schema_extra == LATER}
    assert later == architecture.UNUSED
    assert set(architecture.GATED) == set(GATE_ACTIVATIONS)


def test_an_old_job_has_every_part_unused(tmp_path: Path) -> None:
    job = make_job(tmp_path, model=LLAMA)
    assert all(architecture.part(job.model, name) == value for name, value in architecture.UNUSED.items())
    assert (job.layout.context, job.layout.expert) == (1, 1)
    assert not architecture.is_mixture(job.model, 0)


def test_a_job_keeps_the_parts_that_it_gives(tmp_path: Path) -> None:
    job = make_job(tmp_path, model=dict(LLAMA, head_dim=12, experts=EXPERTS), layout=dict(expert=2, data=2))
    assert (architecture.head_size(job.model), job.layout.expert) == (12, 2)
    assert job.model.experts is not None
    assert job.model.experts.router.scores == "softmax"
    written = json.loads((tmp_path / "job.json").read_text())
    assert asdict(job.model.experts) == {"shared_gate": False, **written["model"]["experts"]}


def test_the_worker_s_rotations_and_windows_are_those_of_the_schema() -> None:
    intervals = {"sliding_window": 64, "full_attention_interval": 3, "no_rope_interval": 4}
    for changes in (intervals, {"sliding_window": 64}, {}):
        model = MODELS["llama3.1_8b"].model(layers=12, **changes)
        here = parse(architecture.Model, model.model_dump(), "model")
        assert [architecture.is_rotated(here, n) for n in range(12)] == [model.is_rotated(n) for n in range(12)]
        windows = [architecture.layer_window(here, n) for n in range(12)]
        assert windows == [model.layer_window(n) for n in range(12)]
        if changes == intervals:
            assert windows == [64, 64, None] * 4 and [n for n in range(12) if not model.is_rotated(n)] == [3, 7, 11]


@pytest.mark.parametrize(("first", "every"), [(0, 1), (1, 1), (0, 2), (2, 3)])
def test_the_worker_s_mixtures_are_those_of_the_schema(first: int, every: int) -> None:
    experts = {**EXPERTS, "first_layer": first, "every": every}
    model = MODELS["mixtral_8x7b"].model(layers=9, experts=experts)
    here = parse(architecture.Model, model.model_dump(), "model")
    assert [architecture.is_mixture(here, n) for n in range(9)] == [model.is_mixture(n) for n in range(9)]


def test_an_expert_has_its_values_whichever_rank_makes_it(tmp_path: Path) -> None:
    """A rank of expert parallelism makes its slice of the one parameter, and gets what all would make."""
    initializer = Initializer(make_job(tmp_path, model=dict(LLAMA, experts=EXPERTS)))
    name, shape = "layers.1.mlp.experts.up.weight", (4, 24, 16)
    whole = initializer.array(name, shape)
    second = initializer.array(name, shape, slices=(slice(2, 4), slice(0, 24), slice(0, 16)))
    assert whole.shape == shape and np.array_equal(whole[2:4], second)
    assert len({values.tobytes() for values in whole}) == 4


def test_the_experts_of_a_layer_are_one_parameter_with_the_spread_of_a_matrix() -> None:
    model = parsed(experts={**EXPERTS, "shared": 2, "first_layer": 1})
    parameters = list_parameters(model, 32)
    assert parameters["layers.1.mlp.experts.down.weight"].shape == (4, 16, 24)
    assert parameters["layers.1.mlp.experts.up.weight"].std == parameters["layers.0.mlp.up.weight"].std == 0.02
    assert parameters["layers.1.mlp.experts.down.weight"].std == parameters["layers.0.mlp.down.weight"].std == 0.01
    assert parameters["layers.1.mlp.router.weight"].shape == (4, 16)
    assert parameters["layers.1.mlp.shared.gate.weight"].shape == (48, 16)
    assert "layers.0.mlp.router.weight" not in parameters and "layers.1.mlp.up.weight" not in parameters


def test_query_and_key_norms_have_the_width_of_a_head_and_start_at_one() -> None:
    parameters = list_parameters(parsed(query_key_norm=True, head_dim=12), 32)
    for name in ("query_norm", "key_norm"):
        spec = parameters[f"layers.0.attention.{name}.weight"]
        assert (spec.shape, spec.fill) == ((12,), 1.0)
    assert parameters["layers.0.attention.query.weight"].shape == (48, 16)
    assert parameters["layers.0.attention.output.weight"].shape == (16, 48)


def test_biases_of_queries_keys_and_values_only() -> None:
    parameters = list_parameters(parsed(qkv_bias=True), 32)
    biased = {name.split(".")[3] for name in parameters if name.endswith(".bias")}
    assert biased == {"query", "key", "value"}


def test_the_routing_of_a_small_mixture_is_recorded_every_step(tmp_path: Path) -> None:
    small = make_job(tmp_path, model=dict(LLAMA, experts=EXPERTS), gradient_steps=[1, 2])
    assert list(steps_of(small)) == [1, 2, 3, 4]
    many = make_job(tmp_path, model=dict(LLAMA, experts={**EXPERTS, "count": MOST_COUNTERS}), gradient_steps=[1, 2])
    assert list(steps_of(many)) == [1, 2]
    assert list(steps_of(make_job(tmp_path, model=LLAMA))) == []
