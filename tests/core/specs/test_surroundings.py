"""Which inherited variables are recorded, and which count for a certificate: all but those that cannot matter."""

from __future__ import annotations

import pytest
from levelfield.specs.variables import (
    RECORDED_BY_EXCLUSION,
    arithmetic_variables,
    recordable_variables,
    report_variables,
)

# Of libraries that a training may load; each was once recorded by no prefix.
CHANGING = (
    "XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION", "FLAGS_cudnn_deterministic", "NVTE_FUSED_ATTN", "DNNL_MAX_CPU_ISA",
    "CUBLAS_WORKSPACE_CONFIG", "CUDNN_DETERMINISTIC", "TRITON_F32_DEFAULT", "HIPBLASLT_ALLOW_TF32",
    "ASCEND_LAUNCH_BLOCKING",
    "ONEFLOW_EP_CUDA_ALLOW_TF32", "MIOPEN_FIND_MODE", "ATEN_CPU_CAPABILITY", "PATH", "PYTHONOPTIMIZE", "LD_PRELOAD",
    "X",
)  # fmt: skip


@pytest.mark.parametrize("name", CHANGING)
def test_what_may_change_a_training_is_recorded_and_counts(name: str) -> None:
    assert arithmetic_variables(recordable_variables({name: "1", "TERM": "xterm"}), RECORDED_BY_EXCLUSION) == {
        name: "1"
    }


def test_what_cannot_is_left_out() -> None:
    session = [
        "PWD",
        "SHLVL",
        "TERM",
        "TERM_PROGRAM",
        "SSH_TTY",
        "LANG",
        "LC_NUMERIC",
        "XDG_RUNTIME_DIR",
        "DISPLAY",
        "MAIL",
    ]
    more = ("HOSTNAME", "SLURM_JOB_ID", "HOME", "USER", "_", "PYTEST_CURRENT_TEST", "CI", "GITHUB_SHA")
    assert recordable_variables(dict.fromkeys((*session, *more), "1")) == {}
    assert (
        set(recordable_variables(dict.fromkeys(("PWDX", "TERMITE", "LANGUAGES", "HOMEX", "CIX", "USERS"), "1")))
        != set()
    )
    of_place = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "NCCL_DEBUG", "OMP_NUM_THREADS", "LEVELFIELD_RUNS")
    variables = recordable_variables(dict.fromkeys(of_place, "1"))
    assert set(variables) == {*of_place} and arithmetic_variables(variables, RECORDED_BY_EXCLUSION) == {}


def test_a_secret_is_a_digest_that_shows_a_change() -> None:
    first, again, other = (recordable_variables({"MY_TOKEN": text})["MY_TOKEN"] for text in ("one", "one", "two"))
    assert first == again != other and "one" not in first and first.startswith("(secret, digest ")


def test_provenance_of_an_earlier_run_counts_as_it_did() -> None:
    variables = {"PYTHONOPTIMIZE": "1", "LEVELFIELD_X": "1", "NCCL_X": "1", "MKL_X": "1"}
    assert arithmetic_variables(variables, None) == {"LEVELFIELD_X": "1", "MKL_X": "1"}


def test_a_reader_is_shown_what_is_known_to_matter_with_short_values() -> None:
    relevant = {
        "CUDA_HOME": "/usr/local/cuda",
        "NVIDIA_TF32_OVERRIDE": "1",
        "MUSA_LAUNCH_BLOCKING": "1",
        "XLA_FLAGS": "x",
    }
    others = ("SSL_CERT_FILE", "NVIDIA_REQUIRE_CUDA", "CUDA_VERSION", "NV_CUDA_LIB_VERSION", "LEVELFIELD_RUNS", "PATH")
    assert report_variables({**relevant, **dict.fromkeys(others, "1")}) == relevant
    assert report_variables({"LD_LIBRARY_PATH": 80 * "x"}) == {"LD_LIBRARY_PATH": 80 * "x"}
    assert report_variables({"LD_LIBRARY_PATH": 81 * "x"}) == {"LD_LIBRARY_PATH": 77 * "x" + "..."}
