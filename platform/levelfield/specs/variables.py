"""Environment variables of a training: which nobody may set, look like secrets, are recorded, or count for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

from levelfield.specs.short_names import clipped

MASK = "(masked)"
# Why nobody may set a variable.
_PLACE_REASON = "the platform sets the place of each process"
_LOADER_REASON = "the loader would take other libraries than those that the plan names"
_CODE_REASON = "it changes which programs and modules run, and the plan names those"
_OWN_REASON = "it belongs to the platform"
_DEVICES_REASON = "the platform chooses the devices; the case string names their number"
# Names that nobody may set, as patterns, each with the reason.
_RESERVED_NAMES = {
    r"(LOCAL_|NODE_|GROUP_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)": _PLACE_REASON,
    r"TORCHELASTIC_\w+|PADDLE_TRAINER\w*|PADDLE_MASTER|FLAGS_selected_\w+": _PLACE_REASON,
    r"LD_\w+": _LOADER_REASON,
    r"PATH|PYTHON(PATH|HOME|STARTUP|EXECUTABLE|PLATLIBDIR|USERBASE|NOUSERSITE|UNBUFFERED)|VIRTUAL_ENV": _CODE_REASON,
    r"LEVELFIELD_\w*": _OWN_REASON,
    r"\w+_VISIBLE_(DEVICES|MODULES|CORES|CHIPS)": _DEVICES_REASON,
}
# A maker's libraries are found by the first, and its container runtime is told the devices by the second.
_LIBRARY_PATH = "LD_LIBRARY_PATH"
_VISIBLE_NAME = re.compile(r"\w+_VISIBLE_\w+")
# What a shell, the C library or a thread pool reads: a list of devices there would change more than the devices.
_SYSTEM_NAMES = re.compile(
    r"HOME|USER|LOGNAME|SHELL|IFS|ENV|BASH_ENV|PWD|TMP|TMPDIR|TEMP|TZ|TERM|LANG|LANGUAGE|LC_\w+|XDG_\w+|GCONV_PATH"
    r"|GLIBC_\w+|MALLOC_\w+|OMP_\w+|MKL_\w+|(?i:\w*_PROXY)"
)
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW(OR)?D|PASSPHRASE|KEY|CREDENTIAL|AUTH(?!OR)|CONNECTION_STRING|COOKIE|LICEN[CS]E"
    r"|NETRC|^SSHPASS$|(^|_)(PASS|PWD|PAT|PIN(_?CODE)?)$",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(
    r"\b(?:hf|gh[opsur]|glpat|github_pat|npm|xox[abeprs])[_-][A-Za-z0-9_-]{16,}|\bsk-[A-Za-z0-9_-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]*:[^/\s@]+@|\bhttps?://[^/\s@]+@|\bBearer\s+\S{8,}"
    r"|\b(?i:AccountKey|SharedAccessKey|password|pwd)=[^;&\s\"']{4,}"
    r"|\b(?:machine\s+\S+|default)\s+(?:(?:login|account)\s+\S+\s+){0,2}password\s+\S+"  # a netrc
)
# A training inherits variables from the user's shell. A list of names that matter is never complete: each library reads
# its own. So these are lists of names that do not. First the terminal, the session, the login, the language, jobs of
# engines and of CI systems, and the runner of tests.
_SESSION_NAMES = re.compile(
    r"PWD|OLDPWD|SHLVL|_|TERM(_\w+|INFO)?|COLORTERM|COLUMNS|LINES|NO_COLOR|LS_COLORS|PS[1-4]|PROMPT_COMMAND|HIST\w+"
    r"|LANG|LANGUAGE|LC_\w+|TZ|XDG_\w+|DISPLAY|XAUTHORITY|WAYLAND_DISPLAY|WINDOWID|DBUS_\w+|SSH_\w+|SUDO_\w+|MAIL"
    r"|HOME|USER|LOGNAME|USERNAME|HOSTNAME|SHELL|EDITOR|VISUAL|PAGER|LESS\w*|TMUX\w*|STY|INVOCATION_ID|JOURNAL_STREAM"
    r"|SLURM\w*|KUBERNETES_\w+|CI|CI_\w+|GITHUB_\w+|GITLAB_\w+|RUNNER_\w+|JENKINS_\w+|BUILD_\w+|BUILDKITE\w*|PYTEST_\w+"
)
# Names that choose devices, networks, threads and how Python writes, or belong to the platform.
_PLACE_NAMES = re.compile(
    r"\w+_VISIBLE_(DEVICES|MODULES|CORES|CHIPS)|NCCL_\w+|GLOO_\w+|OMP_NUM_THREADS|LEVELFIELD_\w*"
    r"|PYTHON(UNBUFFERED|DONTWRITEBYTECODE|IOENCODING|UTF8|WARNINGS|FAULTHANDLER)"
)
# Runs from before the list above recorded other variables. These are the names among them that a certificate left out.
_OLD_PLACE_PREFIXES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NCCL_", "GLOO_", "PYTHON", "OMP_NUM_THREADS")
# A change of a variable with such a name begins a new segment of a series. Any variable would not do: a job's number in
# one would begin a new segment each night.
INFLUENTIAL_PREFIXES = (
    "LD_", "GLIBC_TUNABLES", "MALLOC_", "PYTHON", "OMP_", "MKL_", "KMP_", "GOMP_", "CUDA_", "NCCL_", "GLOO_", "TORCH",
    "PYTORCH_", "NVIDIA_", "LEVELFIELD_", "ONEDNN_", "DNNL_", "XLA_", "JAX_", "FLAGS_", "NVTE_", "CUBLAS", "CUDNN",
    "TRITON_", "HIP", "HSA_", "ROC", "MIOPEN_", "ASCEND_", "HCCL_", "ONEFLOW_", "ATEN_", "OPENBLAS_", "BLIS_",
)  # fmt: skip
# Reports show what is known to matter, of these makers too: that list is part of stored histories and does not grow.
_MAKER_PREFIXES = (
    "MACA_", "MCCL_", "MUSA_", "MTHREADS_", "XPU_", "BKCL_", "PADDLE_", "MLU_", "CNCL_", "NEUWARE_", "HABANA_", "HCL_",
    "PT_HPU_", "COREX_",
)  # fmt: skip
# Names that describe an image to its container's runtime, or to a reader.
_IMAGE_NAMES = re.compile(r"NVIDIA_(REQUIRE_\w+|PRODUCT_NAME|DRIVER_CAPABILITIES)|(CUDA|NCCL|PYTHON)_VERSION")
_MAX_CHARACTERS = 80  # of a value in a report
RECORDED_BY_EXCLUSION = "all but names that cannot matter"  # in provenance: the rule of the recorded variables


def reserved_reason(name: str, setter: str = "tuning") -> str | None:
    """Return why this variable may not be set, or None. setter: `tuning`, or `vendor` or `container` of vendor.yaml."""
    if setter != "tuning" and name == _LIBRARY_PATH:
        return None
    if setter == "container" and _VISIBLE_NAME.fullmatch(name):
        return None
    return next((reason for pattern, reason in _RESERVED_NAMES.items() if re.fullmatch(pattern, name)), None)


def check_variables(variables: dict[str, str], setter: str) -> dict[str, str]:
    """Return the variables. Raises ValueError for a name that is none or is reserved, and for a value with a NUL."""
    for name, value in variables.items():
        if not VARIABLE_NAME.fullmatch(name):
            raise ValueError(f"found the name {name!r}, expected letters, digits and underscores")
        if reason := reserved_reason(name, setter):
            raise ValueError(f"{name} cannot be set here: {reason}; leave it out")
        if "\0" in value:
            raise ValueError(f"{name}: found a NUL character, which no variable can hold")
        if not is_utf8(value):
            raise ValueError(f"{name}: found a byte that is not UTF-8, which no file of a run can hold")
    return variables


def check_visible(name: str) -> str:
    """Return the name of a variable that names devices. Raises ValueError for one with another meaning."""
    if not VARIABLE_NAME.fullmatch(name):
        raise ValueError(f"found the name {name!r}, expected letters, digits and underscores")
    reason = reserved_reason(name)
    if reason != _DEVICES_REASON and (reason or _SYSTEM_NAMES.fullmatch(name)):
        meaning = reason or "other programs read it"
        raise ValueError(f"found {name}, expected the variable of the maker that names devices: {meaning}")
    return name


VisibleVariable = Annotated[str, AfterValidator(check_visible)]


def is_utf8(value: str) -> bool:
    """Return whether a text can be written as UTF-8. One that Python read from other bytes cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


TuningVariables = Annotated[dict[str, str], AfterValidator(lambda variables: check_variables(variables, "tuning"))]
VendorVariables = Annotated[dict[str, str], AfterValidator(lambda variables: check_variables(variables, "vendor"))]
ContainerVariables = Annotated[
    dict[str, str], AfterValidator(lambda variables: check_variables(variables, "container"))
]


@lru_cache(4096)  # thousands of ranks have the same variables
def is_secret(name: str, value: str) -> bool:
    """Return whether the name or the value looks like that of a secret."""
    return bool(_SECRET_NAME.search(name) or SECRET_VALUE.search(value))


def mask_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as every file and every print shows them: MASK for each value that looks like a secret."""
    return {name: MASK if is_secret(name, value) else value for name, value in variables.items()}


def recordable_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that provenance records: all but those of the session, secrets as digests, in order."""
    return {
        name: _secret_digest(name, text) if is_secret(name, text) else text
        for name, text in sorted(variables.items())
        if not _SESSION_NAMES.fullmatch(name)
    }


def arithmetic_variables(inherited: Mapping[str, str], rule: str | None) -> dict[str, str]:
    """Return the recorded variables that can change what a training computes.

    rule: by which provenance recorded them; None for provenance from before it named a rule.
    """
    if rule != RECORDED_BY_EXCLUSION:
        return {name: text for name, text in inherited.items() if not name.startswith(_OLD_PLACE_PREFIXES)}
    return {name: text for name, text in inherited.items() if not _PLACE_NAMES.fullmatch(name)}


def influential_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names are known to change trainings. LEVELFIELD_ variables change none."""
    return {
        name: text
        for name, text in variables.items()
        if name.startswith(INFLUENTIAL_PREFIXES) and not name.startswith("LEVELFIELD_")
    }


def is_influential_or_maker(name: str) -> bool:
    """Return whether a variable of this name is known to change trainings, or is one of a maker of chips."""
    return name.startswith((*INFLUENTIAL_PREFIXES, *_MAKER_PREFIXES))


def report_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that reports have: those that are known to change trainings. Long values are cut."""
    return {
        name: clipped(text, _MAX_CHARACTERS)
        for name, text in inherited.items()
        if is_influential_or_maker(name) and not name.startswith("LEVELFIELD_") and not _IMAGE_NAMES.fullmatch(name)
    }


def _secret_digest(name: str, text: str) -> str:
    """Return a digest by which a change shows. It is slow on purpose: a short secret is not to be found by trying."""
    digest = hashlib.pbkdf2_hmac("sha256", text.encode(errors="surrogateescape"), name.encode(), 200_000)
    return f"(secret, digest {digest.hex()[:16]})"
