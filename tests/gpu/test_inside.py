"""What a rehearsal changes inside a rank, without a CUDA build."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch is imported here, and not by each process that only reads the tests."""
    pytest.importorskip("torch.distributed")
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "tools" / "rehearsal" / "inside"), *sys.path])


def test_no_module_of_a_training_has_the_name_of_one_inside() -> None:
    """Both folders are on a rank's path, and the training's comes first."""
    inside = {path.name for path in CHECKOUT.glob("tools/rehearsal/inside/*.py")}
    trainings = {
        path.name for name in ("torch", "deepspeed", "megatron") for path in CHECKOUT.glob(f"models/{name}/*.py")
    }
    assert len(inside) > 4 and len(trainings) > 20
    assert inside & trainings == set()


def test_a_rank_alone_tells_its_place_in_each_group_that_is_split_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's call for it does not say of how many ranks the part is."""
    from torch.distributed import distributed_c10d

    tell_splits = importlib.import_module("alone").tell_splits
    told: list[tuple[int, int]] = []
    library = SimpleNamespace(standin_next_split=lambda rank, ranks: told.append((rank, ranks)))
    monkeypatch.setattr(distributed_c10d, "_new_process_group_helper", lambda size, rank: (size, rank))
    monkeypatch.setattr(distributed_c10d.ProcessGroup, "split_group", lambda self, ranks: ranks)
    tell_splits(library)
    helper: Any = distributed_c10d._new_process_group_helper
    assert helper(4, 3) == (4, 3)
    split_group: Any = distributed_c10d.ProcessGroup.split_group
    split_group(SimpleNamespace(rank=lambda: 5), [7, 5])
    split_group(SimpleNamespace(rank=lambda: 1), [7, 5])
    assert told == [(3, 4), (0, 2), (0, 2)]


def test_counts_on_the_host_do_not_nest() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    counts = importlib.import_module("counts")
    modes = counts.counted_on_host(lambda: len(_get_current_dispatch_mode_stack()), None)
    assert modes() == 1
    with counts.HostCounts(None):
        assert modes() == 1


def test_layers_are_named_where_another_made_them() -> None:
    layers_of = importlib.import_module("rank").layers_of
    engine = {"layers": "transformer_engine", "transformer_engine": "2.11.0"}
    assert layers_of(engine) == "transformer-engine 2.11.0"
    assert layers_of({"layers": "local", "transformer_engine": None}) is None
    assert layers_of({"torch": "2.13.0"}) is None
