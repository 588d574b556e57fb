"""What a rehearsal changes inside a rank, without a CUDA build."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


@pytest.fixture(autouse=True)
def inside(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent / "rehearsal" / "inside"), *sys.path])


def test_a_rank_alone_has_no_group_that_could_be_split(monkeypatch):
    """NCCL's split does not say of how many ranks the part is."""
    from alone import stand_alone
    from torch.distributed.pipelining.stage import PipelineStage

    given = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: given.update(more))
    if hasattr(PipelineStage, "_warmup_backward_result"):  # put back when the test ends
        monkeypatch.setattr(PipelineStage, "_warmup_backward_result", PipelineStage._warmup_backward_result)
    stand_alone(8)
    dist.init_process_group("nccl", "env://", rank=3, world_size=8, device_id=torch.device("cpu"))
    assert {"rank": 3, "world_size": 8}.items() <= given.items()
    assert "device_id" not in given and given["store"].add("key", 1) == 8


def test_counts_on_the_host_do_not_nest():
    from counts import HostCounts, counted_on_host
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = counted_on_host(lambda: len(_get_current_dispatch_mode_stack()), None)
    assert modes() == 1
    with HostCounts(None):
        assert modes() == 1


def test_layers_are_named_where_another_made_them():
    from rank import layers_of

    engine = {"layers": "transformer_engine", "transformer_engine": "2.11.0"}
    assert layers_of(engine) == "transformer-engine 2.11.0"
    assert layers_of({"layers": "local", "transformer_engine": None}) is None
    assert layers_of({"torch": "2.13.0"}) is None
