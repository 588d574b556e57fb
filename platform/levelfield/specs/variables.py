"""Environment variables of a training: which nobody may set, look like secrets, are recorded, or count for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from levelfield.specs.short_names import clipped

MASK = "(masked)"
_PLACE = "the platform sets the place of each process"
_LOADER = "the loader would take other libraries than those that the plan names"
_PROGRAMS = "it changes which programs and modules run, and the plan names those"
_OWN = "it belongs to the platform"
_DEVICES = "the platform chooses the devices; the case string names their number"
_RESERVED = {
    r"(LOCAL_|NODE_|GROUP_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)": _PLACE,
    r"TORCHELASTIC_\w+|PADDLE_TRAINER\w*|PADDLE_MASTER|FLAGS_selected_\w+": _PLACE,
    r"LD_\w+": _LOADER,
    r"PATH|PYTHON(PATH|HOME|STARTUP|EXECUTABLE|PLATLIBDIR|USERBASE|NOUSERSITE|UNBUFFERED)|VIRTUAL_ENV": _PROGRAMS,
    r"LEVELFIELD_\w*": _OWN,
    r"\w+_VISIBLE_(DEVICES|MODULES|CORES|CHIPS)": _DEVICES,
}
# A maker's libraries are found by the first, and its container runtime is told the devices by the second.
_LIBRARIES = "LD_LIBRARY_PATH"
_VISIBLE = re.compile(r"\w+_VISIBLE_\w+")
# What a shell, the C library or a thread pool reads: a list of devices there would change more than the devices.
_SYSTEM = re.compile(
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
# Of what a training inherits from the user's shell. A list of names that matter is never complete: each library reads
# its own. So these are lists of names that do not. First the terminal, the session, the login, the language, jobs of
# engines and of CI systems, and the runner of tests.
_SESSION_NAMES = re.compile(
    r"PWD|OLDPWD|SHLVL|_|TERM(_\w+|INFO)?|COLORTERM|COLUMNS|LINES|NO_COLOR|LS_COLORS|PS[1-4]|PROMPT_COMMAND|HIST\w+"
    r"|LANG|LANGUAGE|LC_\w+|TZ|XDG_\w+|DISPLAY|XAUTHORITY|WAYLAND_DISPLAY|WINDOWID|DBUS_\w+|SSH_\w+|SUDO_\w+|MAIL"
    r"|HOME|USER|LOGNAME|USERNAME|HOSTNAME|SHELL|EDITOR|VISUAL|PAGER|LESS\w*|TMUX\w*|STY|INVOCATION_ID|JOURNAL_STREAM"
    r"|SLURM\w*|KUBERNETES_\w+|CI|CI_\w+|GITHUB_\w+|GITLAB_\w+|RUNNER_\w+|JENKINS_\w+|BUILD_\w+|BUILDKITE\w*|PYTEST_\w+"
)
# They choose devices, networks, threads and how Python writes, or belong to the platform.
_PLACE_NAMES = re.compile(
    r"\w+_VISIBLE_(DEVICES|MODULES|CORES|CHIPS)|NCCL_\w+|GLOO_\w+|OMP_NUM_THREADS|LEVELFIELD_\w*"
    r"|PYTHON(UNBUFFERED|DONTWRITEBYTECODE|IOENCODING|UTF8|WARNINGS|FAULTHANDLER)"
)
# Before the list above: what provenance recorded then, and what of it a certificate left out.
_OLD_PLACE_PREFIXES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NCCL_", "GLOO_", "PYTHON", "OMP_NUM_THREADS")
# What a history of nights is divided by: a job's number in any variable would begin a new one each night.
KNOWN_PREFIXES = (
    "LD_", "GLIBC_TUNABLES", "MALLOC_", "PYTHON", "OMP_", "MKL_", "KMP_", "GOMP_", "CUDA_", "NCCL_", "GLOO_", "TORCH",
    "PYTORCH_", "NVIDIA_", "LEVELFIELD_", "ONEDNN_", "DNNL_", "XLA_", "JAX_", "FLAGS_", "NVTE_", "CUBLAS", "CUDNN",
    "TRITON_", "HIP", "HSA_", "ROC", "MIOPEN_", "ASCEND_", "HCCL_", "ONEFLOW_", "ATEN_", "OPENBLAS_", "BLIS_",
)  # fmt: skip
# Reports show what is known to matter, of these makers too: that list is part of stored histories and does not grow.
_MAKER_PREFIXES = (
    "MACA_", "MCCL_", "MUSA_", "MTHREADS_", "XPU_", "BKCL_", "PADDLE_", "MLU_", "CNCL_", "NEUWARE_", "HABANA_", "HCL_",
    "PT_HPU_", "COREX_",
)  # fmt: skip
# They describe an image to its container's runtime, or to a reader.
_IMAGE_NAMES = re.compile(r"NVIDIA_(REQUIRE_\w+|PRODUCT_NAME|DRIVER_CAPABILITIES)|(CUDA|NCCL|PYTHON)_VERSION")
_MAX_CHARACTERS = 80  # characters of a value
RECORDED_BY_EXCLUSION = "all but names that cannot matter"  # in provenance: the rule of the recorded variables


def reserved_reason(name: str, by: str = "tuning") -> str | None:
    """Return why nobody may set this variable, or None. by: `tuning`, `vendor` or `container` of vendor.yaml."""
    if by != "tuning" and name == _LIBRARIES:
        return None
    if by == "container" and _VISIBLE.fullmatch(name):
        return None
    return next((reason for pattern, reason in _RESERVED.items() if re.fullmatch(pattern, name)), None)


def check(variables: dict[str, str], by: str) -> dict[str, str]:
    """Return the variables. Raises ValueError for a name that is none or is reserved, and for a value with a NUL."""
    for name, value in variables.items():
        if not VARIABLE_NAME.fullmatch(name):
            raise ValueError(f"found the name {name!r}, expected letters, digits and underscores")
        if reason := reserved_reason(name, by):
            raise ValueError(f"{name} cannot be set here: {reason}; leave it out")
        if "\0" in value:
            raise ValueError(f"{name}: found a NUL character, which no variable can hold")
        if not is_text(value):
            raise ValueError(f"{name}: found a byte that is not UTF-8, which no file of a run can hold")
    return variables


def check_visible(name: str) -> str:
    """Return the name of a variable that names devices. Raises ValueError for one with another meaning."""
    if not VARIABLE_NAME.fullmatch(name):
        raise ValueError(f"found the name {name!r}, expected letters, digits and underscores")
    reason = reserved_reason(name)
    if reason != _DEVICES and (reason or _SYSTEM.fullmatch(name)):
        meaning = reason or "other programs read it"
        raise ValueError(f"found {name}, expected the variable of the maker that names devices: {meaning}")
    return name


VisibleVariable = Annotated[str, AfterValidator(check_visible)]


def is_text(value: str) -> bool:
    """Return whether a text has only characters. A name that is not UTF-8 has others."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


TuningVariables = Annotated[dict[str, str], AfterValidator(lambda variables: check(variables, "tuning"))]
VendorVariables = Annotated[dict[str, str], AfterValidator(lambda variables: check(variables, "vendor"))]
ContainerVariables = Annotated[dict[str, str], AfterValidator(lambda variables: check(variables, "container"))]


def is_secret(name: str, value: str) -> bool:
    """Return whether the name or the value looks like that of a secret."""
    return bool(_SECRET_NAME.search(name) or SECRET_VALUE.search(value))


def masked(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as every file and every print shows them: MASK for each value that looks like a secret."""
    return {name: MASK if is_secret(name, value) else value for name, value in variables.items()}


def recorded(variables: Mapping[str, str]) -> dict[str, str]:
    """Return all variables but those of the session, in order. Of what looks like a secret there is a digest."""
    return {
        name: _secret(name, text) if is_secret(name, text) else text
        for name, text in sorted(variables.items())
        if not _SESSION_NAMES.fullmatch(name)
    }


def arithmetic_variables(inherited: Mapping[str, str], rule: str | None) -> dict[str, str]:
    """Return the recorded variables that can change what a training computes. rule: of the provenance; None: before."""
    if rule != RECORDED_BY_EXCLUSION:
        return {name: text for name, text in inherited.items() if not name.startswith(_OLD_PLACE_PREFIXES)}
    return {name: text for name, text in inherited.items() if not _PLACE_NAMES.fullmatch(name)}


def known_to_matter(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with names that are known to matter. LEVELFIELD_ variables change no training."""
    return {
        name: text
        for name, text in variables.items()
        if name.startswith(KNOWN_PREFIXES) and not name.startswith("LEVELFIELD_")
    }


def is_known_or_maker(name: str) -> bool:
    """Return whether the name is known to matter, or is one of a maker of chips."""
    return name.startswith((*KNOWN_PREFIXES, *_MAKER_PREFIXES))


def report_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that reports have: those that are known to change trainings. Long values are cut."""
    return {
        name: clipped(text, _MAX_CHARACTERS)
        for name, text in inherited.items()
        if is_known_or_maker(name) and not name.startswith("LEVELFIELD_") and not _IMAGE_NAMES.fullmatch(name)
    }


def _secret(name: str, text: str) -> str:
    """Return a digest by which a change shows. It is slow on purpose: a short secret is not to be found by trying."""
    digest = hashlib.pbkdf2_hmac("sha256", text.encode(errors="surrogateescape"), name.encode(), 200_000)
    return f"(secret, digest {digest.hex()[:16]})"
