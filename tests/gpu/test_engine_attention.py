"""The stand-in asks for what transformer-engine's fused attention asks for, without its library."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from standin.build import build_delivery

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
# transformer-engine's tensors, as far as attention uses them
ENGINE = """
#include <stddef.h>
struct shape { size_t sizes[15], dimensions; };
struct content { void *at; int type; struct shape shape; };
struct shape nvte_tensor_shape(struct content *tensor) { return tensor->shape; }
void *nvte_tensor_data(struct content *tensor) { return tensor->at; }
void nvte_set_tensor_param(struct content **tensor, int which, const struct content *content) { **tensor = *content; }
"""
BYTE, INT64, FLOAT32, BF16 = 0, 3, 4, 6
ARGUMENTS = {"nvte_fused_attn_fwd": "ppppppppppppppp" + "nn" + "bbb" + "ff" + "iiii" + "ll" + "pp"}
ARGUMENTS["nvte_fused_attn_bwd"] = "p" * 17 + "nn" + "ff" + "iiii" + "ll" + "bb" + "pp"
TYPES = {"p": ctypes.c_void_p, "n": ctypes.c_size_t, "b": ctypes.c_bool, "f": ctypes.c_float, "i": ctypes.c_int}
TYPES["l"] = ctypes.c_int64


class Tensor(ctypes.Structure):
    _fields_ = [
        ("at", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("sizes", ctypes.c_size_t * 15),
        ("dimensions", ctypes.c_size_t),
    ]

    @property
    def shape(self) -> list[int]:
        return list(self.sizes)[: self.dimensions]


class Pack(ctypes.Structure):
    _fields_ = [("tensors", ctypes.c_void_p * 10), ("many", ctypes.c_size_t)]


def tensor(*shape: int, at: int | None = None, type: int = BF16) -> Tensor:
    return Tensor(at, type, (*shape, *[0] * (15 - len(shape))), len(shape))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("standin")
    (folder / "engine.c").write_text(ENGINE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "engine.so", folder / "engine.c"], check=True)
    ctypes.CDLL(str(folder / "engine.so"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(build_delivery(folder)))


def call(library: ctypes.CDLL, name: str, given: dict[int, Any]) -> None:
    """Call it with these values by place, and zeros in the others."""
    function = getattr(library, name)
    function.argtypes = [TYPES[each] for each in ARGUMENTS[name]]
    values = [None if each == "p" else 0 for each in ARGUMENTS[name]]
    for place, value in given.items():
        values[place] = ctypes.addressof(value) if isinstance(value, ctypes.Structure) else value
    function(*values)


def forward(library: ctypes.CDLL, queries: Tensor, starts: Tensor, length: int, **more: Any) -> Any:
    kept, workspace = Pack(), more.get("workspace", tensor(0))
    parts = [tensor(0) for _ in range(10)]
    kept.tensors = (ctypes.c_void_p * 10)(*map(ctypes.addressof, parts))
    given = {0: queries, 7: kept, 8: starts, 15: length, 17: more.get("training", True), 28: workspace}
    call(library, "nvte_fused_attn_fwd", given)
    return parts[: kept.many], workspace


def launched(library: ctypes.CDLL, tmp_path: Path) -> dict[str, int]:
    assert library.standin_dump(str(tmp_path / "books.json").encode()) == 0
    entries = json.loads((tmp_path / "books.json").read_text())["entries"]
    return {name: count for kind, name, count, *_ in entries if kind == "kernel"}


def test_forward_keeps_a_sum_for_each_row_of_scores(library: ctypes.CDLL) -> None:
    parts, workspace = forward(library, tensor(2048, 4, 32, 128), tensor(5), 2048)
    assert [(part.shape, part.type) for part in parts] == [([4, 32, 2048, 1], FLOAT32), ([2], INT64)]
    assert (workspace.shape, workspace.type) == ([16], BYTE)
    parts, _ = forward(library, tensor(8192, 32, 128), tensor(5), 4096)  # sequences of several lengths
    assert parts[0].shape == [8192, 32, 1]
    assert forward(library, tensor(2048, 4, 32, 128), tensor(5), 2048, training=False)[0] == []


def test_backward_works_with_a_float32_gradient_of_the_queries(library: ctypes.CDLL) -> None:
    workspace = tensor(0)
    call(library, "nvte_fused_attn_bwd", {0: tensor(2048, 4, 32, 128), 13: tensor(5), 17: 2048, 29: workspace})
    assert workspace.shape == [4 * 2048 * 4 * 32 * (128 + 1)]


def test_with_a_workspace_a_kernel_is_counted(library: ctypes.CDLL, tmp_path: Path) -> None:
    library.standin_reset()
    at = ctypes.create_string_buffer(16)
    ready = tensor(16, at=ctypes.addressof(at), type=BYTE)
    forward(library, tensor(2048, 4, 32, 128), tensor(5), 2048, workspace=ready)
    call(library, "nvte_fused_attn_bwd", {0: tensor(2048, 4, 32, 128), 29: ready})
    names = [f"transformer-engine's cudnn attention, {which}" for which in ("backward", "forward")]
    assert launched(library, tmp_path) == dict.fromkeys(names, 1)
