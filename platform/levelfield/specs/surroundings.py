"""Variables that a training inherits from the user's shell: which are recorded, and which count for a certificate.

A list of names that matter is never complete: each library reads its own. So these are lists of names that do not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from levelfield.specs.variables import is_secret

# The terminal, the session, the login, the language, jobs of engines and of CI systems, and the runner of tests.
_OF_SESSION = re.compile(
    r"PWD|OLDPWD|SHLVL|_|TERM(_\w+|INFO)?|COLORTERM|COLUMNS|LINES|NO_COLOR|LS_COLORS|PS[1-4]|PROMPT_COMMAND|HIST\w+"
    r"|LANG|LANGUAGE|LC_\w+|TZ|XDG_\w+|DISPLAY|XAUTHORITY|WAYLAND_DISPLAY|WINDOWID|DBUS_\w+|SSH_\w+|SUDO_\w+|MAIL"
    r"|HOME|USER|LOGNAME|USERNAME|HOSTNAME|SHELL|EDITOR|VISUAL|PAGER|LESS\w*|TMUX\w*|STY|INVOCATION_ID|JOURNAL_STREAM"
    r"|SLURM\w*|KUBERNETES_\w+|CI|CI_\w+|GITHUB_\w+|GITLAB_\w+|RUNNER_\w+|JENKINS_\w+|BUILD_\w+|BUILDKITE\w*|PYTEST_\w+"
)
# They choose devices, networks, threads and how Python writes, or belong to the platform.
_OF_PLACE = re.compile(
    r"\w+_VISIBLE_(DEVICES|MODULES|CORES|CHIPS)|NCCL_\w+|GLOO_\w+|OMP_NUM_THREADS|LEVELFIELD_\w*"
    r"|PYTHON(UNBUFFERED|DONTWRITEBYTECODE|IOENCODING|UTF8|WARNINGS|FAULTHANDLER)"
)
# Before the list above: what provenance recorded then, and what of it a certificate left out.
_OF_PLACE_BEFORE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NCCL_", "GLOO_", "PYTHON", "OMP_NUM_THREADS")
# What a history of nights is divided by: a job's number in any variable would begin a new one each night.
KNOWN_TO_MATTER = (
    "LD_", "GLIBC_TUNABLES", "MALLOC_", "PYTHON", "OMP_", "MKL_", "KMP_", "GOMP_", "CUDA_", "NCCL_", "GLOO_", "TORCH",
    "PYTORCH_", "NVIDIA_", "LEVELFIELD_", "ONEDNN_", "DNNL_", "XLA_", "JAX_", "FLAGS_", "NVTE_", "CUBLAS", "CUDNN",
    "TRITON_", "HIP", "HSA_", "ROC", "MIOPEN_", "ASCEND_", "HCCL_", "ONEFLOW_", "ATEN_", "OPENBLAS_", "BLIS_",
)  # fmt: skip
RULE = "all but names that cannot matter"  # in provenance, of runs whose variables are recorded by exclusion


def recorded(variables: Mapping[str, str]) -> dict[str, str]:
    """Return all variables but those of the session, in order. Of what looks like a secret there is a digest."""
    kept = {name: text for name, text in sorted(variables.items()) if not _OF_SESSION.fullmatch(name)}
    return {name: _secret(name, text) if is_secret(name, text) else text for name, text in kept.items()}


def counting(inherited: Mapping[str, str], rule: str | None) -> dict[str, str]:
    """Return the recorded variables that can change what a training computes. rule: of the provenance; None: before."""
    if rule != RULE:
        return {name: text for name, text in inherited.items() if not name.startswith(_OF_PLACE_BEFORE)}
    return {name: text for name, text in inherited.items() if not _OF_PLACE.fullmatch(name)}


def _secret(name: str, text: str) -> str:
    """Return a digest by which a change shows. It is slow on purpose: a short secret is not to be found by trying."""
    digest = hashlib.pbkdf2_hmac("sha256", text.encode(errors="surrogateescape"), name.encode(), 200_000)
    return f"(secret, digest {digest.hex()[:16]})"
