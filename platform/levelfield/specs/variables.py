"""Environment variables of a training: those that nobody may set, and those whose value looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

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
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"TOKEN(?!IZ)|SECRET|PASSW(OR)?D|KEY|CREDENTIAL|AUTH(?!OR)", re.IGNORECASE)
SECRET_VALUE = re.compile(
    r"\b(?:hf|gh[opsur]|glpat|github_pat|npm|xox[abeprs])[_-][A-Za-z0-9_-]{16,}|\bsk-[A-Za-z0-9_-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]*:[^/\s@]+@|\bBearer\s+\S{8,}"
)


def reserved(name: str, by: str = "tuning") -> str | None:
    """Return why nobody may set this variable, or None. by: `tuning`, `vendor` or `container` of vendor.yaml."""
    if by != "tuning" and name == _LIBRARIES:
        return None
    if by == "container" and _VISIBLE.fullmatch(name):
        return None
    return next((why for pattern, why in _RESERVED.items() if re.fullmatch(pattern, name)), None)


def check(variables: dict[str, str], by: str) -> dict[str, str]:
    """Return the variables. Raises ValueError for a name that is none or is reserved, and for a value with a NUL."""
    for name, value in variables.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"found the name {name!r}, expected letters, digits and underscores")
        if why := reserved(name, by):
            raise ValueError(f"{name} cannot be set here: {why}; leave it out")
        if "\0" in value:
            raise ValueError(f"{name}: found a NUL character, which no variable can hold")
        if not is_text(value):
            raise ValueError(f"{name}: found a byte that is not UTF-8, which no file of a run can hold")
    return variables


def check_visible(name: str) -> str:
    """Return the name of a variable that names devices. Raises ValueError for one with another meaning."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"found the name {name!r}, expected letters, digits and underscores")
    why = reserved(name)
    if why == _DEVICES:
        return name
    if why or _SYSTEM.fullmatch(name):
        meaning = why or "other programs read it"
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


TuningVariables = Annotated[dict[str, str], AfterValidator(lambda found: check(found, "tuning"))]
VendorVariables = Annotated[dict[str, str], AfterValidator(lambda found: check(found, "vendor"))]
ContainerVariables = Annotated[dict[str, str], AfterValidator(lambda found: check(found, "container"))]


def is_secret(name: str, value: str) -> bool:
    """Return whether the name or the value looks like that of a secret."""
    return bool(_SECRET_NAME.search(name) or SECRET_VALUE.search(value))


def masked(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as every file and every print shows them: MASK for each value that looks like a secret."""
    return {name: MASK if is_secret(name, value) else value for name, value in variables.items()}
