"""The rehearsal without a CUDA build: plans, ranks, text, and the settings of the stand-in."""

import ctypes
import shutil
import sys
from pathlib import Path

import pytest
import rehearse
from rehearsal import needs
from rehearsal.needs import check_needs, default_python
from rehearsal.plans import (
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


def job(**sizes):
    return {"layout": {"data": 1, "tensor": 1, "pipeline": 1, **sizes}}


def entry():
    chip = {"chip": {"name": "H100-SXM5-80GB"}, "devices_per_node": 8}
    tuning = {"layout": job(data=8)["layout"], "micro_batch": 4, "recompute": "selective"}
    expected = {"parts": {"weights": 3 * GIB, "reserve": GIB}}
    return {"plan": {"asked": "a:torch", "hardware": chip, "tuning": tuning, "expected_memory": expected}}


def step(**changes):
    found = {"step": 2, "allocated_peak_bytes": 2 * GIB, "reserved_peak_bytes": 3 * GIB, "failed_allocations": 0}
    found.update(allocator_retries=0, product_flops=1.5e15, kernels=64, kernels_a_layer=2.0, copies={})
    found.update(synchronisations={"stream": 4}, attention_kernels={}, collectives={})
    return {**found, **changes}


def rank(**changes):
    report = {"rank": 0, "world": 8, "alone": True, "exit_code": 0, "error": None, "steps": [step()]}
    return {**report, "attention_choices": {"shape": "cudnn"}, **changes}


def test_a_case_string_is_completed():
    assert case_string("gpt3_6.7B") == "gpt3_6.7B:torch:H100:1:8"
    assert case_string("gpt3_6.7B:deepspeed:A100-40GB") == "gpt3_6.7B:deepspeed:A100-40GB:1:8"
    for wrong in ("a:b:c:1:8:9", "a::H100", ""):
        with pytest.raises(RehearsalError, match="expected CASE"):
            case_string(wrong)


def test_ranks_that_tell_most():
    assert telling_ranks(job(data=8)) == [0, 7]
    assert telling_ranks(job(data=2, pipeline=4)) == [0, 4, 6]
    assert telling_ranks(job()) == [0]
    assert world_size(job(data=2, tensor=2, context=2)) == 8


def test_the_reserve_is_no_part_of_the_planned_memory():
    assert planned_bytes(entry()) == 3 * GIB
    assert planned_bytes({"plan": {"expected_memory": None}}) is None


def test_a_chip_without_a_stand_in_is_named():
    assert chip_of(entry()) == "H100-80"
    other = {"plan": {"hardware": {"chip": {"name": "B200-SXM-180GB"}}}}
    with pytest.raises(RehearsalError, match="chip B200-SXM-180GB: the stand-in pretends to be one of H100"):
        chip_of(other)


def test_lines_of_a_rank():
    reduced = {"all_reduce over 8": {"count": 7, "bytes": GIB}}
    lines = lines_of(entry(), 3 * GIB, [rank(steps=[step(collectives=reduced, failed_allocations=3)])])
    assert max(map(len, lines)) <= 80
    assert "  planned without the reserve: 3.00 GiB" in lines
    assert "  step 2: allocated 2.00, reserved 3.00 GiB; 3 failed, 0 flushes" in lines
    assert any("attention: cudnn" in line for line in lines)
    assert any("all_reduce over 8" in line and "7 x" in line and "1.00 GiB" in line for line in lines)


def test_lines_of_a_rank_that_was_ended():
    said = "noise\nstand-in: rank 0: hangs\n  rank 1: waits in recv from rank 0\nmore noise\n"
    lines = lines_of(entry(), None, [{"rank": 0, "steps": [], "exit_code": 86, "printed": said}])
    assert lines[-3:] == [
        "rank 0: ended with code 86",
        "  stand-in: rank 0: hangs",
        "    rank 1: waits in recv from rank 0",
    ]
    assert "planned without the reserve: - GiB" in lines[2]


def test_lines_of_a_compiled_rank():
    steps = [
        {"step": 1, "graphs": 3, "graph_breaks": {"a print " * 20: 2}},
        {"step": 2, "graphs": 0, "graph_breaks": {}},
    ]
    lines = lines_of(entry(), None, [rank(attention_choices={}, compiled_steps=steps)])
    assert max(map(len, lines)) <= 80
    assert "  step 1: 3 graphs compiled, 2 graph breaks" in lines and not any("step 2: 0 graphs" in e for e in lines)
    assert any(line.startswith("    2 x a print") for line in lines)
    assert "rank 0 of 8, alone; attention: see the kernels below" in lines


def test_frameworks_have_an_environment_or_the_named_python(monkeypatch, tmp_path):
    monkeypatch.setattr(needs, "CHECKOUT", tmp_path)
    monkeypatch.setenv("LEVELFIELD_CUDA_PYTHON", "/named")
    assert framework_of("gpt2_small:deepspeed_0.19.8:H100") == "deepspeed" and framework_of("gpt2_small") == "torch"
    assert default_python("torch") == Path("/named")
    own = tmp_path / ".venvs" / "torch-nvidia" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert default_python("torch") == Path("/named")  # it is still being made
    (own.parents[1] / "levelfield-environment.json").touch()
    assert (default_python("torch"), default_python("deepspeed")) == (own, Path("/named"))


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_python_that_lacks_torch_or_the_framework_is_named(monkeypatch, tmp_path):
    with pytest.raises(BuildError, match=r"expected a CUDA build. `run_benchmarks.py environment make torch"):
        check_needs("gpt2_small:torch:H100-SXM5-80GB", Path(sys.executable))
    monkeypatch.setattr(needs, "environment", lambda framework: Path(sys.executable))
    with pytest.raises(BuildError, match="set PIP_INDEX_URL to one with CUDA builds, remove this environment"):
        check_needs("gpt2_small:torch:H100-SXM5-80GB", Path(sys.executable))
    monkeypatch.setattr(needs, "cuda_torch", lambda python: tmp_path)
    monkeypatch.setitem(needs.PACKAGES, "megatron", ("no_such_package", "json"))
    with pytest.raises(RehearsalError, match="found no no_such_package, expected megatron for CUDA"):
        check_needs("gpt2_small:megatron:H100-SXM5-80GB", Path(sys.executable))


def test_a_chip_or_framework_without_a_stand_in_is_refused(capsys):
    for case, says in (
        ("gpt2_small:torch:MI300X:1:8", "chip MI300X: the stand-in pretends to be one of H100-SXM5-80GB"),
        ("gpt2_small:torch:cpu", "chip cpu: the stand-in"),
        ("gpt2_small:jax:H100-SXM5-80GB:1:1", "framework jax: the stand-in replaces CUDA for torch"),
    ):
        assert rehearse.main([case, "--check", "--python", sys.executable]) == 2
        assert f"rehearse: {says}" in capsys.readouterr().err


def test_compiling_and_a_recorded_step_have_parents_of_their_own():
    parents = [parent_of({"tuning": {"compile": each}}, part) for each in (False, True) for part in (False, True)]
    assert len(set(parents)) == 3 and all((INSIDE / name).is_file() for name in parents)


def test_findings_are_told_in_lines_and_end_with_code_4(monkeypatch, capsys):
    said = "rank 0: matrix products of 1e+09 FLOPs, expected 2e+09 (-50.00%), in a sentence that is longer than a line"
    assert max(map(len, finding_lines([said]))) <= 80
    monkeypatch.setattr(rehearse, "findings", lambda entry, reports: [said])
    assert rehearse.report(entry(), [rank()], as_json=False) == 4
    assert "FINDING: rank 0: matrix products of" in capsys.readouterr().out
    assert rehearse.report(entry(), [rank(exit_code=86)], as_json=True) == 3
    monkeypatch.setattr(rehearse, "findings", lambda entry, reports: [])
    assert rehearse.report(entry(), [rank()], as_json=False) == 0


def test_functions_of_cuda_are_told_from_others():
    assert all(map(is_cuda, ("cudaMalloc", "__cudaGetKernel", "cublasSgemm_v2", "ncclSend", "cuLaunchKernel")))
    assert not any(map(is_cuda, ("cufftExec", "cuFileRead", "current", "custom", "malloc")))


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_memory_of_a_device_ends_and_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_STANDIN_BYTES", str(2 * GIB))
    library = ctypes.CDLL(str(build_delivery(tmp_path)))
    at, left, whole = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert library.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(GIB)) == 0
    assert library.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(GIB)) == 2  # out of memory: 600 MiB are the context's
    library.cudaMemGetInfo(ctypes.byref(left), ctypes.byref(whole))
    assert (whole.value, left.value) == (2 * GIB, GIB - (600 << 20))


def test_chips_of_the_catalog_are_known_to_the_stand_in():
    source = (needs.CHECKOUT / "tools" / "standin" / "books.c").read_text()
    assert all(f'{{"{key}", ' in source for key in CHIPS.values())


def test_transformer_engines_attention_and_layers_are_told():
    kernels = {"transformer-engine's cudnn attention, forward": 3, "void flash_fwd_kernel": 1}
    found = rank(steps=[step(attention_kernels=kernels)], layers="transformer-engine 2.11.0", attention_choices={})
    assert attention_names(found) == ["transformer-engine's cudnn"]
    assert attention_names(rank()) == ["cudnn"]
    lines = lines_of(entry(), None, [found])
    assert any(line.endswith("attention: transformer-engine's cudnn") for line in lines)
    assert "  layers: transformer-engine 2.11.0" in lines


def test_transformer_engines_library_beside_torch_is_found(tmp_path):
    library = tmp_path / "transformer_engine" / "wheel_lib" / "libtransformer_engine.so"
    assert engine(tmp_path / "torch") == []
    library.parent.mkdir(parents=True)
    library.touch()
    assert engine(tmp_path / "torch") == [library]


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_rehearsals_own_copies_are_moved_whole(tmp_path):
    library = ctypes.CDLL(str(build_delivery(tmp_path)))
    size = 2**20 + 1  # larger than what moves
    source, at = ctypes.create_string_buffer(b"1" * size, size), ctypes.c_void_p()
    assert library.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(size)) == 0
    for quiet, found in ((0, b"\0"), (1, b"1")):
        library.standin_quiet(quiet)
        library.cudaMemcpy(at, source, ctypes.c_size_t(size), 1)
        assert ctypes.string_at(at.value, 1) == found
    library.standin_quiet(0)


def test_a_full_device_is_named_where_the_framework_wraps_its_error():
    printed = (
        "  raise\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB.\nRuntimeError: backward\n"
    )
    report = {
        "rank": 0,
        "steps": [],
        "exit_code": 1,
        "printed": printed,
        "error": "RuntimeError: failed to run backward",
    }
    assert "out of memory" in lines_of(entry(), None, [report])[3]
    assert "failed to run" in lines_of(entry(), None, [{**report, "printed": "RuntimeError: backward"}])[3]
