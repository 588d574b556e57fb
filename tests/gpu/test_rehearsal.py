"""The rehearsal without a CUDA build: plans, ranks, text, and the settings of the stand-in."""

from __future__ import annotations

import ctypes
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import rehearse
from rehearsal import needs
from rehearsal.needs import check_needs, default_python
from rehearsal.plans import (
    CHECKOUT,
    CHIPS,
    RehearsalError,
    case_string,
    chip_of,
    framework_of,
    planned_bytes,
    telling_ranks,
    world_size,
)
from rehearsal.start import INSIDE, parent_of
from rehearsal.text import attention_names, finding_lines, lines_of
from standin.build import BuildError, build_delivery, engine, is_cuda

GIB = 2**30


def job(**sizes: int) -> dict[str, Any]:
    return {"layout": {"data": 1, "tensor": 1, "pipeline": 1, **sizes}}


def entry() -> dict[str, Any]:
    chip = {"chip": {"name": "H100-SXM5-80GB"}, "devices_per_node": 8}
    tuning = {"layout": job(data=8)["layout"], "micro_batch": 4, "recompute": "selective"}
    expected = {"parts": {"weights": 3 * GIB, "reserve": GIB}}
    return {"plan": {"asked": "a:torch", "hardware": chip, "tuning": tuning, "expected_memory": expected}}


def step(**changes: Any) -> dict[str, Any]:
    return {
        **{"step": 2, "allocated_peak_bytes": 2 * GIB, "reserved_peak_bytes": 3 * GIB, "failed_allocations": 0},
        **{"allocator_retries": 0, "product_flops": 1.5e15, "kernels": 64, "kernels_a_layer": 2.0, "copies": {}},
        **{"synchronisations": {"stream": 4}, "attention_kernels": {}, "collectives": {}},
        **changes,
    }


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


def line_with(lines: list[str], word: str) -> str:
    """Return the only line that has a word."""
    (line,) = (line for line in lines if word in line)
    return line.strip()


def rank(**changes: Any) -> dict[str, Any]:
    report = {"rank": 0, "world": 8, "alone": True, "exit_code": 0, "error": None, "steps": [step()]}
    return {**report, "attention_choices": {"shape": "cudnn"}, **changes}


def test_a_case_string_is_completed() -> None:
    assert case_string("gpt3_6.7B") == "gpt3_6.7B:torch:H100:1:8"
    assert case_string("gpt3_6.7B:deepspeed:A100-40GB") == "gpt3_6.7B:deepspeed:A100-40GB:1:8"
    for wrong in ("a:b:c:1:8:9", "a::H100", ""):
        with pytest.raises(RehearsalError, match="expected CASE"):
            case_string(wrong)


def test_ranks_that_tell_most() -> None:
    assert telling_ranks(job(data=8)) == [0, 7]
    assert telling_ranks(job(data=2, pipeline=4)) == [0, 4, 6]
    assert telling_ranks(job()) == [0]
    assert world_size(job(data=2, tensor=2, context=2)) == 8


def test_the_reserve_is_no_part_of_the_planned_memory() -> None:
    assert planned_bytes(entry()) == 3 * GIB
    assert planned_bytes({"plan": {"expected_memory": None}}) is None


def test_a_chip_without_a_stand_in_is_named() -> None:
    assert chip_of(entry()) == "H100-80"
    other = {"plan": {"hardware": {"chip": {"name": "B200-SXM-180GB"}}}}
    with pytest.raises(RehearsalError, match=f"chip B200-SXM-180GB: .*{', '.join(CHIPS)}"):
        chip_of(other)


def test_lines_of_a_rank() -> None:
    reduced = {"all_reduce over 8": {"count": 7, "bytes": GIB}}
    lines = lines_of(entry(), 3 * GIB, [rank(steps=[step(collectives=reduced, failed_allocations=3)])])
    assert max(map(len, lines)) <= 80
    assert numbers(line_with(lines, "planned")) == [3.0]
    assert numbers(line_with(lines, "allocated")) == [2, 2.0, 3.0, 3, 0]  # the step, GiB, failures, flushes
    assert "attention: cudnn" in line_with(lines, "attention")
    assert line_with(lines, "all_reduce").split()[:3] == ["all_reduce", "over", "8"]
    assert {7, 1.0} <= set(numbers(line_with(lines, "all_reduce")))


def test_lines_of_a_rank_that_was_ended() -> None:
    report = ["stand-in: rank 0: hangs", "  rank 1: waits in recv from rank 0"]
    printed = "\n".join(("noise", *report, "more noise", ""))
    lines = lines_of(entry(), None, [{"rank": 0, "steps": [], "exit_code": 86, "printed": printed}])
    assert lines[-2:] == [f"  {line}" for line in report]
    assert numbers(lines[-3]) == [0, 86]
    assert lines[2].endswith(": - GiB")


def test_lines_of_a_compiled_rank() -> None:
    steps = [
        {"step": 1, "graphs": 3, "graph_breaks": {"a print " * 20: 2}},
        {"step": 2, "graphs": 0, "graph_breaks": {}},
    ]
    lines = lines_of(entry(), None, [rank(attention_choices={}, compiled_steps=steps)])
    assert max(map(len, lines)) <= 80
    assert numbers(line_with(lines, "graphs")) == [1, 3, 2]  # no line of the second step, which compiled nothing
    assert line_with(lines, "a print a print").startswith("2 x")
    assert line_with(lines, "alone;").startswith("rank 0")
    assert line_with(lines, "alone;").endswith("below")  # where the kernels of attention are


def test_frameworks_have_an_environment_or_the_named_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(needs, "CHECKOUT", tmp_path)
    monkeypatch.setenv("LEVELFIELD_CUDA_PYTHON", "/named")
    assert framework_of("gpt2_small:deepspeed_0.19.8:H100") == "deepspeed" and framework_of("gpt2_small") == "torch"
    assert default_python("torch") == Path("/named")
    python = tmp_path / ".venvs" / "torch-nvidia" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert default_python("torch") == Path("/named")  # it is still being made
    (python.parents[1] / "levelfield-environment.json").touch()
    assert (default_python("torch"), default_python("deepspeed")) == (python, Path("/named"))


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_python_that_lacks_torch_or_the_framework_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"`run_benchmarks.*make torch"):
        check_needs("gpt2_small:torch:H100-SXM5-80GB", Path(sys.executable))
    monkeypatch.setattr(needs, "environment", lambda framework: Path(sys.executable))
    with pytest.raises(BuildError, match=r"PIP_INDEX_URL.*\bremove\b"):
        check_needs("gpt2_small:torch:H100-SXM5-80GB", Path(sys.executable))
    monkeypatch.setattr(needs, "cuda_torch", lambda python: tmp_path)
    monkeypatch.setitem(needs.PACKAGES, "megatron", ("no_such_package", "json"))
    with pytest.raises(RehearsalError, match="no_such_package, expected megatron"):
        check_needs("gpt2_small:megatron:H100-SXM5-80GB", Path(sys.executable))


def test_a_chip_or_framework_without_a_stand_in_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for case, words in (
        ("gpt2_small:torch:MI300X:1:8", "chip MI300X: the stand-in pretends to be one of H100-SXM5-80GB"),
        ("gpt2_small:torch:cpu", "chip cpu: the stand-in"),
        ("gpt2_small:jax:H100-SXM5-80GB:1:1", "framework jax: the stand-in replaces CUDA for torch"),
    ):
        assert rehearse.main([case, "--check", "--python", sys.executable]) == 2
        assert f"rehearse: {words}" in capsys.readouterr().err


def test_compiling_and_a_recorded_step_have_parents_of_their_own() -> None:
    parents = [parent_of({"tuning": {"compile": flag}}, part) for flag in (False, True) for part in (False, True)]
    assert len(set(parents)) == 3 and all((INSIDE / name).is_file() for name in parents)


def test_findings_are_printed_in_lines_and_end_with_code_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = f"rank 0: {'surplus ' * 12}"
    assert max(map(len, finding_lines([finding]))) <= 80
    monkeypatch.setattr(rehearse, "findings", lambda entry, reports: [finding])
    assert rehearse.report(entry(), [rank()], as_json=False) == 4
    assert capsys.readouterr().out.split().count("surplus") == 12
    assert rehearse.report(entry(), [rank(exit_code=86)], as_json=True) == 3
    monkeypatch.setattr(rehearse, "findings", lambda entry, reports: [])
    assert rehearse.report(entry(), [rank()], as_json=False) == 0


def test_functions_of_cuda_are_recognised_by_name() -> None:
    assert all(map(is_cuda, ("cudaMalloc", "__cudaGetKernel", "cublasSgemm_v2", "ncclSend", "cuLaunchKernel")))
    assert not any(map(is_cuda, ("cufftExec", "cuFileRead", "current", "custom", "malloc")))


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_memory_of_a_device_ends_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_STANDIN_BYTES", str(2 * GIB))
    library = ctypes.CDLL(str(build_delivery(tmp_path)))
    at, left, whole = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert library.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(GIB)) == 0
    assert library.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(GIB)) == 2  # out of memory: 600 MiB are the context's
    library.cudaMemGetInfo(ctypes.byref(left), ctypes.byref(whole))
    assert (whole.value, left.value) == (2 * GIB, GIB - (600 << 20))


def test_chips_of_the_catalog_are_known_to_the_stand_in() -> None:
    source = (CHECKOUT / "tools" / "standin" / "books.c").read_text()
    assert all(f'{{"{key}", ' in source for key in CHIPS.values())


def test_transformer_engines_attention_and_layers_are_named() -> None:
    kernels = {"transformer-engine's cudnn attention, forward": 3, "void flash_fwd_kernel": 1}
    report = rank(steps=[step(attention_kernels=kernels)], layers="transformer-engine 2.11.0", attention_choices={})
    assert attention_names(report) == ["transformer-engine's cudnn"]
    assert attention_names(rank()) == ["cudnn"]
    lines = lines_of(entry(), None, [report])
    assert line_with(lines, "attention:").endswith(": transformer-engine's cudnn")
    assert line_with(lines, "layers:").endswith(f": {report['layers']}")


def test_transformer_engines_library_lies_beside_torch(tmp_path: Path) -> None:
    library = tmp_path / "transformer_engine" / "wheel_lib" / "libtransformer_engine.so"
    assert engine(tmp_path / "torch") == []
    library.parent.mkdir(parents=True)
    library.touch()
    assert engine(tmp_path / "torch") == [library]


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_rehearsals_own_copies_are_moved_whole(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(build_delivery(tmp_path)))
    size = 2**20 + 1  # larger than what moves
    source, at = ctypes.create_string_buffer(b"1" * size, size), ctypes.c_void_p()
    assert library.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(size)) == 0
    for quiet, content in ((0, b"\0"), (1, b"1")):
        library.standin_quiet(quiet)
        library.cudaMemcpy(at, source, ctypes.c_size_t(size), 1)
        assert ctypes.string_at(at, 1) == content
    library.standin_quiet(0)


def test_a_full_device_is_named_where_the_framework_wraps_its_error() -> None:
    printed = (
        "  raise\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB.\nRuntimeError: backward\n"
    )
    report: dict[str, Any] = {
        "rank": 0,
        "steps": [],
        "exit_code": 1,
        "printed": printed,
        "error": "RuntimeError: failed to run backward",
    }
    memory, backward = ("CUDA out of memory", report["error"])
    assert memory in lines_of(entry(), None, [report])[3]
    assert backward in lines_of(entry(), None, [{**report, "printed": "RuntimeError: backward"}])[3]
