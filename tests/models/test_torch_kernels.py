"""Kernels of accelerators without one: what they compute, in Triton's interpreter; and when a training takes them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from layouts import MODELS, SINGLE, events, launch, parsed_job, planted, small_job
from levelfield.checkout import checkout
from triton_beside import NoTriton, triton_folder

pytestmark = pytest.mark.torch

LIST_MODULES = """
import sys, training
right = training.train
def listed(job, recorder):
    right(job, recorder)
    with open({path!r}, "w") as file:
        file.write(" ".join(sys.modules))
training.train = listed
"""
TESTS = Path(__file__).with_name("interpreted")


@pytest.mark.parametrize("which", ["not thorough", pytest.param("thorough", marks=pytest.mark.thorough)])
def test_kernels_compute_what_torch_does(which: str) -> None:
    """In a process of their own, as everything there finds Triton."""
    try:
        folder = triton_folder()
    except NoTriton:
        pytest.skip("no package index answers")
    own = {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join((str(checkout() / "platform"), str(folder)))}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, str(TESTS)]
    done = subprocess.run(argv, env={**os.environ, **own}, cwd=checkout(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


# ---- which a training takes


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device of NVIDIA's with Triton beside it, to the choice alone: modules in place of the kernels'."""
    from model import kernels

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(name=name))
    yield torch.device("cuda", 0)
    kernels._chosen.clear()


def chosen_for(device: torch.device, family: str = "llama", compiled: bool = False, **changes: object) -> list[str]:
    from model import kernels

    variant = replace(SINGLE, compile=compiled)
    return kernels.choose(parsed_job(small_job({**MODELS[family], **changes}, variant, 2)), device)


def test_a_training_takes_the_kernels_that_fit_its_model(cuda: torch.device) -> None:
    from model import kernels

    assert chosen_for(cuda) == ["cross_entropy", "rotary", "swiglu", "add_norm"]
    rotary = kernels.chosen("rotary")
    assert rotary is not None and rotary.name == "fused.rotary"
    assert chosen_for(cuda, "gpt") == ["cross_entropy", "add_norm"]
    assert kernels.chosen("rotary") is None, "of the training before"
    assert chosen_for(cuda, norm_place="after") == ["cross_entropy", "rotary", "swiglu"]
    assert chosen_for(cuda, parallel_residual="one_norm") == ["cross_entropy", "rotary", "swiglu"]
    assert chosen_for(cuda, norm="layernorm", norm_bias=False) == ["cross_entropy", "rotary", "swiglu"]
    assert chosen_for(cuda, rotary_dim=4) == ["cross_entropy", "swiglu", "add_norm"]
    assert chosen_for(cuda, hidden_size=2**14 + 128) == ["cross_entropy", "rotary", "swiglu"]
    assert chosen_for(cuda, compiled=True) == ["cross_entropy"], "torch.compile fuses the others itself"


def test_only_a_device_that_triton_compiles_for_has_kernels(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from model import kernels

    assert chosen_for(torch.device("cpu")) == chosen_for(torch.device("xpu")) == []
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
        assert chosen_for(cuda) == []
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "cuda", None)  # a build for AMD's devices calls them cuda too
        assert chosen_for(cuda) == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert chosen_for(cuda) == []
    assert kernels.chosen("cross_entropy") is None


def test_a_training_on_a_processor_imports_no_kernel(tmp_path: Path) -> None:
    """No environment for processors has Triton."""
    listing = LIST_MODULES.format(path=str(tmp_path / "modules"))
    (end,) = launch(small_job(MODELS["llama"], SINGLE, 2), tmp_path, planted(tmp_path, "torch", listing))
    assert end.returncode == 0, end.output[-2000:]
    modules = (tmp_path / "modules").read_text().split()
    assert "model.kernels" in modules
    assert [name for name in modules if name.startswith(("fused", "triton"))] == []
    assert next(e for e in events(tmp_path, 0) if e["event"] == "framework")["details"]["kernels"] == []
