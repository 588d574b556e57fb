"""What a torch run records beside its losses: gradient norms by parameter, and one step's tensors on request."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from device import describe
from layouts import MODELS, SINGLE, Variant, compare, events, launch, planted, read_curve, small_job, train
from levelfield.contracts.vendor import Device
from levelfield.run.provenance import device_identities
from matrix import VARIANTS
from test_torch_training import DATA_2, gpt

pytestmark = pytest.mark.torch


def captured(
    folder: Path, model: dict[str, Any], variant: Variant = SINGLE, **training: Any
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """The tensors of step 2, and the events, of a run of three steps."""
    job = {**small_job(model, variant, 3, **training), "capture": {"step": 2, "folder": str(folder / "capture")}}
    (end,) = launch(job, folder)
    assert end.returncode == 0, end.output[-3000:]
    tensors = {path.name.removesuffix(".npy"): np.load(path) for path in (folder / "capture").glob("*.npy")}
    return tensors, events(folder, 0)


@pytest.mark.parametrize("family", sorted(MODELS))
def test_a_captured_step_is_whole_and_agrees_with_itself(family: str, tmp_path: Path) -> None:
    model = MODELS[family]
    tensors, said = captured(tmp_path, model)
    names = {name for name, *_ in next(event for event in said if event["event"] == "weights")["parameters"]}
    activations = ["embedding", *(f"layers.{index}" for index in range(4)), "final_norm"]
    assert set(tensors) == {*activations, "logits", *(f"gradient.{name}" for name in names)}
    assert {tensors[name].shape for name in activations} == {(2, 32, 32)}
    assert tensors["logits"].shape == (2, 32, 128)
    squares = next(event for event in said if event["event"] == "gradients" and event["step"] == 2)["squares"]
    for name in names:
        said_of = sum(square for key, square in squares.items() if key.partition("[")[0] == name)  # experts by one
        assert float(np.square(tensors[f"gradient.{name}"].astype(float)).sum()) == pytest.approx(said_of, rel=1e-5)


def test_capturing_does_not_change_the_run_and_recomputation_not_what_is_captured(tmp_path: Path) -> None:
    runs: dict[str, dict[str, np.ndarray]] = {}
    for name, variant in (("plain", SINGLE), ("recomputed", dataclasses.replace(SINGLE, recompute="full"))):
        (tmp_path / name).mkdir()
        runs[name], said = captured(tmp_path / name, gpt(), variant)
    steps = [event["loss"] for event in said if event["event"] == "step"]
    assert tuple(steps) == train(small_job(gpt(), SINGLE, 3)).losses
    for name, tensor in runs["plain"].items():
        np.testing.assert_array_equal(tensor, runs["recomputed"][name], err_msg=name)


def test_the_loss_scale_is_not_in_what_is_recorded(tmp_path: Path) -> None:
    tensors, said = captured(tmp_path, gpt(), precision="fp16", loss_scale={"initial": 1024.0, "growth_interval": 100})
    reference = train(small_job(gpt(), SINGLE, 3))
    found = compare(read_curve([said]), reference)
    assert found.parameter_norm is not None
    assert found.parameter_norm < 0.05
    norm = sum(np.square(value).sum() for name, value in tensors.items() if name.startswith("gradient.")) ** 0.5
    assert norm == pytest.approx(reference.grad_norms[1], rel=0.01)


def test_two_processes_cannot_capture(tmp_path: Path) -> None:
    job = {**small_job(gpt(), DATA_2, 3), "capture": {"step": 2, "folder": str(tmp_path / "capture")}}
    assert [end.returncode for end in launch(job, tmp_path)] == [1, 1]
    # One that ends first may leave the other with a broken connection.
    assert "unsupported" in {events(tmp_path, rank)[-1]["class"] for rank in (0, 1)}


# ---- planted faults

WRONG_LAYER = """
from step import optimizer
right = optimizer.LocalAdamW.take_gradients
def take(self):
    right(self)
    self.locals[self.names.index("layers.1.mlp.down.weight")].grad *= 1.001
optimizer.LocalAdamW.take_gradients = take
"""
ONE_END_ONLY = """
from step import optimizer
right = optimizer.LocalAdamW.__init__
def init(self, model, training, stage_ranks, ends=None, capturable=False):
    right(self, model, training, stage_ranks)
optimizer.LocalAdamW.__init__ = init
"""


@pytest.mark.layouts
@pytest.mark.parametrize(("layout", "fault"), [("DP2", WRONG_LAYER), ("PP2", ONE_END_ONLY)])
def test_a_wrong_gradient_of_one_parameter_is_seen_in_its_norm(layout: str, fault: str, tmp_path: Path) -> None:
    job = small_job(gpt(), VARIANTS[layout], steps=2)
    assert not any(end.returncode for end in launch(job, tmp_path, planted(tmp_path, "torch", fault)))
    curve = read_curve([events(tmp_path, rank) for rank in range(2)])
    found = compare(curve, train(small_job(gpt(), SINGLE, steps=2)))
    assert found.parameter_norm is not None
    assert found.parameter_norm > 5e-4
    assert found.first_loss is not None
    assert found.first_loss < 1e-6
    assert not found.is_within_limits()


def test_a_rank_shows_its_device_as_the_makers_tool_may_print_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No accelerator is here; the values are those of torch's properties of one."""
    properties = SimpleNamespace(uuid="ab-1", pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    module = SimpleNamespace(get_device_properties=lambda device: properties, get_device_name=lambda device: "a chip")
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    _name, details = describe(torch.device("cuda", 0))
    printed = ("GPU-ab-1", "ab-1", "0000:C1:00.0", "0000:c1:00.0", "00000000:c1:00.0", "00000000:C1:00.0")
    cards = [Device(0, None, "a chip", None, identity) for identity in (*printed, "GPU-ab-2", "0000:c2:00.0")]
    digests = [row["identity"] for row in device_identities(cards)]
    assert set(details["device_identities"]) == set(digests[:-2])
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(get_device_name=lambda device: "x"))
    assert describe(torch.device("cuda", 0))[1]["device_identities"] == []
    assert describe(torch.device("cpu"))[1]["device_identities"] == []
