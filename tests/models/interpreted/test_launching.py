"""A quick launch takes a compiled kernel again only for what Triton would not compile anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fused.launching as launching
import pytest
import torch

MEMORY = torch.zeros(64)
CURRENT_STREAMS = {3: 7}  # by device
POSITIONAL = ("x", "bias", "columns", "eps")
BASE = ((2,), (MEMORY[:32], None, 16, 0.5), {"LAYER": True, "num_warps": 4})


class Kernel:
    """A kernel of Triton as QuickLaunch sees it: it says what was compiled and what was launched."""

    arg_names = ("x", "bias", "columns", "eps", "LAYER")

    def __init__(self) -> None:
        self.compiled = 0
        self.launches: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **_constants: Any) -> Compiled:
            self.compiled += 1
            self.launches.append((grid, *arguments))
            return Compiled(self)

        return launch


class Compiled:
    function, packed_metadata = "function", "metadata"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def run(self, x: int, y: int, z: int, *others: Any) -> None:
        stream, function, metadata, *hooks = others[:6]
        # a captured step has a stream of its own, so a kernel must not keep that of its first launch
        assert stream == CURRENT_STREAMS[3]
        assert (function, metadata, hooks) == ("function", "metadata", [None] * 3)
        self.kernel.launches.append(((x, y, z), *others[6:]))


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = SimpleNamespace(get_current_device=lambda: 3, get_current_stream=CURRENT_STREAMS.__getitem__)
    monkeypatch.setattr(launching, "driver", SimpleNamespace(active=streams))


def launch(quick: launching.QuickLaunch, change: dict[str, Any]) -> None:
    grid, positional, constants = BASE
    values = {**dict(zip(POSITIONAL, positional, strict=True)), **constants, "grid": grid, **change}
    arguments = [values.pop(name) for name in POSITIONAL]
    quick[values.pop("grid")](*arguments, **values)


def test_a_second_launch_compiles_nothing_and_has_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "RUNS_WITH_CONSTANTS", True)
    kernel = Kernel()
    quick, other = launching.QuickLaunch(kernel), MEMORY[32:]
    launch(quick, {})
    monkeypatch.setitem(CURRENT_STREAMS, 3, 8)
    launch(quick, {"x": other, "grid": (3,)})
    assert kernel.compiled == 1 and len(quick.compiled) == 1
    grid, x, *rest = kernel.launches[1]
    assert grid == (3, 1, 1) and x is other and rest == [None, 16, 0.5, True]


@pytest.mark.parametrize(
    "change",
    [
        {"x": MEMORY[1:33]},  # its pointer is no multiple of 16
        {"x": MEMORY[:32].double()},
        {"bias": MEMORY[:4]},
        {"columns": 1},
        {"columns": 17},
        {"eps": 0.25},
        {"LAYER": False},
        {"num_warps": 8},
    ],
    ids=str,
)
def test_what_triton_compiles_for_is_compiled(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "RUNS_WITH_CONSTANTS", True)
    kernel = Kernel()
    quick = launching.QuickLaunch(kernel)
    launch(quick, {})
    launch(quick, change)
    launch(quick, change)
    assert kernel.compiled == 2 and len(kernel.launches) == 3


def test_an_older_triton_launches_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "RUNS_WITH_CONSTANTS", False)
    kernel = Kernel()
    quick = launching.QuickLaunch(kernel)
    launch(quick, {})
    launch(quick, {})
    assert kernel.compiled == 2
