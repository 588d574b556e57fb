"""Faults planted in torch's training, report of which a rehearsal on pretended devices must find: real code, all ranks.

They need a CUDA build of torch, of the Python that LEVELFIELD_CUDA_PYTHON names (standin/README.md).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rehearsal.judgement import findings
from rehearsal.plans import CHECKOUT, make_plan, world_size
from rehearsal.start import rehearse
from standin.build import build

PYTHON = os.environ.get("LEVELFIELD_CUDA_PYTHON")
HANG, MISMATCH = 86, 87
pytestmark = pytest.mark.skipif(not PYTHON, reason="LEVELFIELD_CUDA_PYTHON is not set")
DATA = ("llama3_8b:torch:H100:1:2", "DP2")
STAGES = ("llama3_8b:torch:H100:1:4", "PP4")


class Planted(NamedTuple):
    """A line of models/torch in the place of another; what the rehearsal of this case and layout must say."""

    name: str
    file: str
    line: str
    faulty: str
    says: str
    plan: tuple[str, str] = DATA


BACKWARD = "                loss.backward()\n"
TAKES = "        self.optimizer.take_gradients()\n"
GATED = "gated(self.activation, self.gate(x), self.up(x))"
FAULTS = (
    Planted(
        "report micro-batch's output is kept",
        "model/decoder.py",
        "        return x + self.addend(self.mlp(normed))\n",
        "        x = x + self.addend(self.mlp(normed))\n"
        "        Block.outputs = [*getattr(Block, 'outputs', []), x.detach()]\n        return x\n",
        "allocated memory grows by",
    ),
    Planted(
        "gradients are not reduced",
        "parallelism/data_parallel.py",
        "return contextlib.nullcontext() if last else model.no_sync()",
        "return model.no_sync()",
        "all_reduce over 2 ranks (gradients): ",
    ),
    Planted(
        "a gradient is reduced twice",
        "training.py",
        TAKES,
        f"        dist.all_reduce(next(self.model.parameters()).grad)\n{TAKES}",
        "bytes, expected at most",
    ),
    Planted("half of a product is left out", "model/decoder.py", GATED, GATED.replace("up(x)", "up(x[:1])"), "(-"),
    Planted("a product is doubled", "model/decoder.py", GATED, GATED + " + 0 * self.up(x)", "(+"),
    Planted(
        "the host waits for report micro-batch",
        "training.py",
        BACKWARD,
        f"{BACKWARD}                [parameter.grad.sum().item() for parameter in self.model.parameters()]\n",
        "the host waits",
    ),
)
SENDS = "\n    def step(self, inputs"
WRONG_PEER = """        if self.first:
            part = self.schedule._stage
            right = part.get_fwd_send_ops
            def wrong(chunk):
                ops = right(chunk)
                for report in ops:
                    report.peer, report.group_peer = report.peer + 1, report.group_peer + 1
                return ops
            part.get_fwd_send_ops = wrong
"""


def rehearsed(
    plan: tuple[str, str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    edits: Sequence[tuple[str, str, str]] = (),
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(entry, reports) of a rehearsal by a copy of models/ in which these (file, line, faulty) are planted."""
    shutil.copytree(CHECKOUT / "models", folder / "models", ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    (folder / "platform").symlink_to(CHECKOUT / "platform")
    for file, line, faulty in edits:
        path = folder / "models" / "torch" / file
        text = path.read_text()
        assert text.count(line) == 1, f"{file}: found {text.count(line)} times: {line}"
        path.write_text(text.replace(line, faulty))
    monkeypatch.setattr("rehearsal.start.CHECKOUT", folder)
    case, layout = plan
    entry = make_plan(case, ["--scale", "smoke", "--layout", layout, "--micro-batch", "2"])
    ranks = list(range(world_size(entry["job"])))
    return entry, rehearse(entry, Path(str(PYTHON)), build(Path(str(PYTHON))), ranks, 3, 30)


@pytest.mark.parametrize("plan", [DATA, STAGES], ids=lambda plan: plan[1])
def test_the_code_as_it_is_passes(plan: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, reports = rehearsed(plan, tmp_path, monkeypatch)
    assert [report["exit_code"] for report in reports] == [0] * len(reports), reports
    assert findings(entry, reports) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_a_finding_of_each_rank(fault: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, reports = rehearsed(fault.plan, tmp_path, monkeypatch, [(fault.file, fault.line, fault.faulty)])
    assert [report["exit_code"] for report in reports] == [0] * len(reports), reports
    said = findings(entry, reports)
    for rank in range(len(reports)):
        assert any(report.startswith(f"rank {rank}: ") and fault.says in report for report in said), said


def test_a_send_to_the_wrong_stage_is_a_named_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, reports = rehearsed(STAGES, tmp_path, monkeypatch, [("parallelism/pipeline.py", SENDS, WRONG_PEER + SENDS)])
    ended = [report for report in reports if report["exit_code"] in (HANG, MISMATCH)]
    assert ended, reports
    assert any("stand-in: rank" in report["printed"] for report in ended)
