"""What packages need of this machine is checked before a download: each lack ends in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import NotHere, UsageError
from levelfield.plan import build_checks
from levelfield.plan.build_checks import index_problem, missing_need_sentences, tool_problem, unmet_needs
from levelfield.plan.environment import plan_environment
from levelfield.plan.placement import place
from levelfield.plan.request import Entry, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.specs.plan import Plan
from levelfield.specs.requirements import Build, BuildTool, EnvironmentPackages, LeastVersion, NamedIndex
from levelfield.specs.suite import read_hardware
from levelfield.specs.tuning import TuningChoice

CARD = "{index}, GPU-0000000{index}-1111, NVIDIA H100 80GB HBM3, 81559, 0, 60.0, 0, 30, Disabled, {driver}\n"
NVCC = BuildTool(
    program="nvcc", home="CUDA_HOME", release="13", header="cuda_runtime.h", source="install CUDA's toolkit 13"
)
BUILD = Build(name="acme", packages=("acme==1",), wanted="fp8", tools=(NVCC,), without="no fp8")


class FakeMachine(Protocol):
    """Make a machine with two cards whose nvidia-smi shows this driver."""

    def __call__(self, driver: str) -> None: ...


def program(path: Path, output: str = "Cuda compilation tools, release 13.0, V13.0.88", code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole toolkit of release 13, and nothing else on PATH."""
    program(tmp_path / "cuda/bin/nvcc")
    program(tmp_path / "cuda/bin/g++")
    (tmp_path / "cuda/include").mkdir()
    (tmp_path / "cuda/include/cuda_runtime.h").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'cuda/bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    return tmp_path / "cuda"


def test_a_whole_toolkit_lacks_nothing(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool_problem(NVCC, BUILD) is None
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    assert tool_problem(NVCC, BUILD) is None
    monkeypatch.delenv("CUDA_HOME")
    assert tool_problem(NVCC.model_copy(update={"usual": str(toolkit)}), BUILD) is None


def test_a_script_on_path_that_starts_the_usual_toolkits_program(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program(tmp_path / "scripts/nvcc")
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    assert str(script.parents[1] / "include/cuda_runtime.h") in str(tool_problem(NVCC, BUILD))
    assert tool_problem(NVCC.model_copy(update={"usual": str(toolkit)}), BUILD) is None


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("no program", "found no nvcc (on PATH), expected nvcc 13, which builds acme: install CUDA's toolkit 13"),
        ("no header", "without the header"),
        ("release 12", "of release 12.8, expected nvcc 13"),
        ("release 130", "of release 130.1, expected nvcc 13"),
        ("silent", "of release unknown, expected nvcc 13"),
        ("home without it", "found no nvcc (in CUDA_HOME=/nowhere), expected nvcc 13"),
    ],
)
def test_each_fault_of_a_toolkit_is_one_sentence(
    fault: str, sentence: str, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "no program":
        (toolkit / "bin/nvcc").unlink()
    elif fault == "no header":
        (toolkit / "include/cuda_runtime.h").unlink()
    elif fault == "home without it":
        monkeypatch.setenv("CUDA_HOME", "/nowhere")
    else:
        output = {"release 12": "release 12.8, V1", "release 130": "release 130.1", "silent": ""}[fault]
        program(toolkit / "bin/nvcc", output)
    assert sentence in str(tool_problem(NVCC, BUILD))


@pytest.mark.parametrize(
    ("driver", "is_old"),
    [
        ("579.99.99", True),
        ("580", True),  # the least has more numbers
        ("580.65.05", True),
        ("99.0", True),  # as text it would be the newer one
        ("580.65.06", False),
        ("580.95.05", False),
        ("1000.1", False),
        ("unreadable: NVML", False),
        ("no answer", False),
        ("", False),
    ],
)
def test_drivers_are_compared_by_their_numbers(driver: str, is_old: bool) -> None:
    need = LeastVersion(least="580.65.06", reason="it is a build for CUDA 13")
    assert any(unmet_needs(EnvironmentPackages(driver=need), driver, None)) == is_old


@pytest.mark.parametrize(("address", "actual"), [(None, "found none"), ("paddle", "no URL"), ("ftp://a/b", "no URL")])
def test_a_named_index_is_asked_for(address: str | None, actual: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = NamedIndex(setting="LEVELFIELD_ACME_INDEX", packages=("acme",), reason="Acme has its own")
    monkeypatch.delenv("LEVELFIELD_ACME_INDEX", raising=False)
    if address:
        monkeypatch.setenv("LEVELFIELD_ACME_INDEX", address)
    sentence = str(index_problem(index))
    for part in (actual, index.setting, "has acme", index.reason):
        assert part in sentence
    if address:
        assert address not in sentence  # it may hold a password
    for right in ("https://me:secret@acme.example/simple", "file:///srv/wheels"):
        monkeypatch.setenv("LEVELFIELD_ACME_INDEX", right)
        assert index_problem(index) is None


def test_what_is_fetched_already_needs_neither_index_nor_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("LEVELFIELD_ACME_INDEX", raising=False)
    index = NamedIndex(setting="LEVELFIELD_ACME_INDEX", packages=("acme",), reason="Acme has its own")
    packages = EnvironmentPackages(
        ("acme==1",), (BUILD,), driver=LeastVersion(least="580", reason="CUDA 13"), index=index
    )
    assert len(list(missing_need_sentences(packages, "550.1", is_already_made=False))) == 3
    assert len(list(missing_need_sentences(packages, None, is_already_made=False))) == 2
    assert len(list(missing_need_sentences(packages, "550.1", is_already_made=True))) == 1
    monkeypatch.setenv("LEVELFIELD_WHEELS", str(tmp_path))
    assert list(missing_need_sentences(packages, None, is_already_made=False)) == []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    pynvml = pytest.importorskip("pynvml")

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def make(driver: str) -> None:
        lines = "".join(CARD.format(index=index, driver=driver) for index in (0, 1)).rstrip("\n")
        program(tmp_path / "bin/nvidia-smi", lines)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LEVELFIELD_PADDLE_INDEX", raising=False)
    return make


def planned(text: str, **fields: Any) -> Plan:
    """The plan of a case string. fields: those of UserRequest, and the attention."""
    choice = TuningChoice(attention=fields.pop("attention", None))
    request = UserRequest(choice=choice, scale="smoke", **fields)
    return resolve(place(Registry(), Entry(text, request)), "run-id")


def test_a_new_driver_has_the_default_version(machine: FakeMachine) -> None:
    machine("580.95.05")
    plan = planned("gpt3_6.7B:torch:nvidia:1:2")
    assert "torch==2.13.0" in plan.environment.requirements and plan.deviations == ()
    assert plan.environment.builds == () and [s.partition(":")[0] for s in plan.environment.left_out] == [
        "without flash-attn",
        "without torchao",
    ]


@pytest.mark.parametrize(
    ("framework", "version"), [("torch", "2.10.0"), ("deepspeed", "0.19.8+cuda12"), ("megatron", "0.16.1+cuda12")]
)
def test_an_older_driver_has_the_build_that_it_can_run(
    framework: str, version: str, machine: FakeMachine, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(toolkit / "bin/nvcc", "release 12.8, V12.8.93")
    machine("550.54.15")
    plan = planned(f"gpt3_6.7B:{framework}:nvidia:1:2")
    assert "torch==2.10.0" in plan.environment.requirements
    assert (plan.implementation.version, plan.implementation.is_further) == (version, True)
    assert plan.environment.name == f"{framework}-{version}-nvidia" and plan.selector.version == version
    [reason] = plan.deviations
    for part in (f"{framework}_{version}", "driver 550.54.15", "580.65.06", "torch 2.13.0", "CUDA 13.0"):
        assert part in reason


OLD_CHIP = CARD.replace("H100 80GB HBM3, 81559", "Tesla V100-SXM2-16GB, 16384")


def test_an_older_chip_has_the_build_that_has_code_for_it(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("580.95.05")
    program(tmp_path / "bin/nvidia-smi", OLD_CHIP.format(index=0, driver="580.95.05").rstrip("\n"))
    plan = planned("gpt3_6.7B:torch:V100:1:1")
    assert "torch==2.10.0" in plan.environment.requirements and plan.environment.lacking is None
    [reason] = plan.deviations
    for part in ("torch_2.10.0", "torch 2.13.0", "V100-SXM2-16GB", "capability 7.0"):
        assert part in reason
    assumed = planned("gpt3_6.7B:torch", may_lack_hardware=True, assumed_hardware=read_hardware("4x8 V100"))
    assert "torch==2.10.0" in assumed.environment.requirements and assumed.environment.lacking is None
    with pytest.raises(NotHere, match=r"found V100-SXM2-16GB.*7\.0,.expected.7\.5.*CUDA"):
        planned("gpt3_6.7B:torch_2.13.0:V100:1:1")


def test_an_older_chip_with_an_old_driver_has_a_build_for_both(machine: FakeMachine, tmp_path: Path) -> None:
    machine("550.54.15")
    program(tmp_path / "bin/nvidia-smi", OLD_CHIP.format(index=0, driver="550.54.15").rstrip("\n"))
    [reason] = planned("gpt3_6.7B:torch:V100:1:1").deviations
    assert "capability 7.0" in reason and "driver 550.54.15" in reason


def test_a_driver_that_is_too_old_for_all_ends_before_anything(machine: FakeMachine) -> None:
    machine("470.82.01")
    with pytest.raises(NotHere) as caught:
        planned("gpt3_6.7B:torch:nvidia:1:2")
    for part in ("torch on nvidia", "driver 470.82.01", "expected 580.65.06"):
        assert part in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assumed = planned("gpt3_6.7B:torch:nvidia:1:2", may_lack_hardware=True)
    assert assumed.environment.lacking == str(caught.value)


def test_a_version_that_the_user_named_is_not_changed(machine: FakeMachine) -> None:
    machine("550.54.15")
    with pytest.raises(NotHere, match=r"driver 550\.54\.15,.expected.580\.65\.06"):
        planned("gpt3_6.7B:torch_2.13.0:nvidia:1:2")
    assert planned("gpt3_6.7B:torch_2.10.0:nvidia:1:2").deviations == ()


def test_a_driver_that_nobody_can_read_is_said_and_not_guessed(machine: FakeMachine) -> None:
    machine("[Not Supported]")
    [remark] = planned("gpt3_6.7B:torch:nvidia:1:2").deviations
    assert "580.65.06" in remark and "[Not Supported]" in remark


def test_a_python_of_the_users_own_needs_no_check(machine: FakeMachine) -> None:
    machine("470.82.01")
    for fields in ({"runtime": "inside"}, {"python": "python3"}):
        plan = planned("gpt3_6.7B:torch:nvidia:1:2", **fields)
        assert plan.deviations == () and plan.environment.requirements == ()


@pytest.fixture
def own_python(tmp_path: Path) -> tuple[str, Path]:
    """A Python without packages, for --python, and the folder of its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "own")], check=True)
    return str(tmp_path / "own/bin/python"), next((tmp_path / "own/lib").glob("python*/site-packages"))


def test_a_given_python_without_what_every_run_uses_is_refused(
    machine: FakeMachine, own_python: tuple[str, Path]
) -> None:
    machine("580.95.05")
    python, packages = own_python
    parts = (
        "megatron on nvidia",
        "no transformer-engine",
        python,
        "ModuleNotFoundError",
        "Install transformer-engine[",
    )
    for fields, remedy in (({}, "leave --python out"), ({"runtime": "inside"}, "start a container that has it")):
        with pytest.raises(NotHere) as caught:
            planned("gpt3_6.7B:megatron:nvidia:1:2", python=python, **fields)
        for part in (*parts, remedy):
            assert part in str(caught.value)
    lacking = planned("gpt3_6.7B:megatron:nvidia:1:2", python=python, may_lack_hardware=True).environment.lacking
    assert parts[1] in str(lacking)
    build_checks._import_faults.cache_clear()
    (packages / "transformer_engine.py").write_text("print('a greeting', end='')")
    assert planned("gpt3_6.7B:megatron:nvidia:1:2", python=python).environment.lacking is None


def test_a_given_python_needs_a_build_only_for_the_choice_that_uses_it(
    machine: FakeMachine, own_python: tuple[str, Path]
) -> None:
    machine("580.95.05")
    python, packages = own_python
    assert planned("gpt3_6.7B:torch:nvidia:1:2", python=python).environment.lacking is None
    (packages / "flash_attn.py").write_text("print('hello', end=''); raise ImportError('undefined symbol: _ZN2at')")
    with pytest.raises(NotHere, match=r"no flash-attn.*ImportError.*_ZN2at"):
        planned("gpt3_6.7B:torch:nvidia:1:2", python=python, attention="flash_attn")


def test_a_given_python_needs_one_library_for_fp8(own_python: tuple[str, Path]) -> None:
    python, packages = own_python
    build = BUILD.model_copy(update={"name": "acme", "instead": ("other-acme",)})
    [sentence] = build_checks.import_problems(python, [build])
    for part in ("no acme", "no other-acme", python, "ModuleNotFoundError"):
        assert part in sentence
    (packages / "other_acme.py").touch()
    build_checks._import_faults.cache_clear()
    assert list(build_checks.import_problems(python, [build])) == []


def test_a_build_whose_module_has_another_name_than_its_package_is_found(own_python: tuple[str, Path]) -> None:
    python, packages = own_python
    [sentence] = build_checks.import_problems(python, [BUILD])
    for part in ("no acme", python, "named 'acme'"):
        assert part in sentence
    build_checks._import_faults.cache_clear()
    (packages / "acme-1.dist-info").mkdir()
    (packages / "acme-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    assert list(build_checks.import_problems(python, [BUILD])) == []


def test_a_python_that_does_not_answer_is_left_to_the_training(tmp_path: Path) -> None:
    for name, output in (("silent", ""), ("strange", "[1]"), ("other", "no JSON")):
        python = program(tmp_path / name, output, code=1)
        assert list(build_checks.import_problems(str(python), [BUILD])) == [], name
    assert list(build_checks.import_problems(str(tmp_path / "absent"), [BUILD])) == []


def test_paddles_index_is_asked_for_before_anything(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("580.95.05")
    with pytest.raises(NotHere, match=r"^paddle.*none.*LEVELFIELD_PADDLE_INDEX"):
        planned("gpt3_6.7B:paddle:nvidia:1:2")
    monkeypatch.setenv("LEVELFIELD_PADDLE_INDEX", "https://me:secret@acme.example/simple")
    plan = planned("gpt3_6.7B:paddle:nvidia:1:2")
    assert plan.environment.index == "LEVELFIELD_PADDLE_INDEX" and "secret" not in plan.to_json()


def test_a_kernel_that_must_be_built_needs_its_compiler(
    machine: FakeMachine, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("580.95.05")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(NotHere, match=r"no nvcc.*CUDA_HOME=/nowhere.*flash-attn"):
        planned("gpt3_6.7B:torch:nvidia:1:2", attention="flash_attn")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    plan = planned("gpt3_6.7B:torch:nvidia:1:2", attention="flash_attn")
    assert [step.packages for step in plan.environment.builds] == [("flash-attn==2.8.3",)]
    assert "ninja==1.13.0" in plan.environment.requirements and len(plan.environment.left_out) == 1
    plain = planned("gpt3_6.7B:torch:nvidia:1:2")
    assert plain.environment.digest != plan.environment.digest and "ninja==1.13.0" not in plain.environment.requirements


def test_an_image_has_the_same_checks(machine: FakeMachine) -> None:
    machine("470.82.01")
    with pytest.raises(NotHere, match=r"driver 470\.82\.01"):
        planned("gpt3_6.7B:torch:nvidia:1:2", runtime="docker")
    plan = planned("gpt3_6.7B:torch:nvidia:1:2", runtime="docker", base_image="mine:1", base_has_framework=True)
    assert plan.container and plan.container.image.requirements == () and plan.environment.lacking is None


def test_a_further_step_changes_the_digest_and_no_other_environment() -> None:
    file, _folder = Registry().implementation("torch")
    needs = file.requirements["cpu"].environment_packages()
    plain = plan_environment(file, "cpu", needs, None, "process")
    built = plan_environment(
        file, "cpu", EnvironmentPackages(needs.pip_packages, (BUILD.model_copy(update={"tools": ()}),)), None, "process"
    )
    assert plain.digest != built.digest and plain.builds == () and plain.left_out == ()


def test_a_machine_without_devices_is_not_said_to_have_none_of_the_vendors_first_chip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match=r"^found.no.devices.*nvidia.*expected 8\."):
        planned("gpt3_6.7B:torch:nvidia:1:8")
    with pytest.raises(UsageError, match=r"^found.0.*H100-SXM5-80GB.*expected 8\."):
        planned("gpt3_6.7B:torch:H100:1:8")
