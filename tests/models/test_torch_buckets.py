"""The size of DDP's buckets, by device, ranks and model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.torch
MIB = 2**20


@pytest.mark.parametrize(
    ("numbers", "ranks", "expected"),
    [(1 << 20, 8, 25), (1 << 27, 8, 64), (7_000_000_000, 8, 152), (7_000_000_000, 64, 244)],
)
def test_buckets_are_larger_on_accelerators_and_at_least_eight(numbers: int, ranks: int, expected: int) -> None:
    from parallelism.data_parallel import bucket_mebibytes

    parameters = [torch.empty(numbers - 100, device="meta"), torch.empty(100, device="meta")]
    assert bucket_mebibytes(parameters, ranks) == expected


def test_ddp_has_that_size_and_torchs_own_on_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist
    from parallelism import data_parallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        grid: Any = {"replicate": SimpleNamespace(get_group=lambda: dist.group.WORLD)}
        model: Any = torch.nn.Linear(4, 4)
        runner = data_parallel.replicate_data_parallel(model, grid)
        assert (runner.bucket_bytes_cap, runner.bucket_bytes_cap_default) == (25 * MIB, True)

        seen: list[tuple[Any, ...]] = []

        def mebibytes(*arguments: Any) -> int:
            seen.append(arguments)
            return 3

        monkeypatch.setattr(data_parallel, "bucket_mebibytes", mebibytes)
        model = torch.nn.Linear(4, 4)
        runner = data_parallel.replicate_data_parallel(model, grid, divided=[model.bias])
        assert runner.bucket_bytes_cap == 3 * MIB
        assert len(seen) == 1 and seen[0][1] == 1
        assert [parameter.shape for parameter in seen[0][0]] == [(4, 4)]
    finally:
        dist.destroy_process_group()
