"""What a container may be given of the host: a closed list, and beyond it what the user allows by name (--allow).

The list is the same for every vendor, in the checkout, in --plugins and in installed packages. docs/security.md has the
reason of each item. A path counts after `..` and links are resolved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from levelfield.errors import UsageError
from levelfield.specs.tuning import Tuning
from levelfield.specs.variables import check_variables
from levelfield.specs.vendor import ContainerOptions, VendorFile

# The closed list, by kind of permission.
CAPABILITIES = ("SYS_NICE", "IPC_LOCK")
GROUPS = ("video", "render")
RUNTIMES = ("nvidia", "habana", "mthreads")
DRIVERS = ("nvidia",)
ULIMITS = ("memlock", "stack", "nofile")
MOUNT_FOLDERS = ("/opt", "/usr", "/lib", "/lib64")  # only what lies below: software for every user of a machine
DEVICE_NODES = re.compile(
    r"/dev/(kfd|dri(/(card|renderD)\d+)?|davinci(\d+|_manager)|devmm_svm|hisi_hdc|cambricon_(dev\d+|ctl)|iluvatar\d+"
    r"|xpu(\d+|ctrl)|mxcd)"
)
# An example of each form of --allow.
PERMISSION_FORMS = {
    "capability": "capability:SYS_PTRACE",
    "device": "device:/dev/acme*",
    "mount": "mount:/srv/acme",
    "group": "group:acme",
    "security": "security:seccomp=unconfined",
    "network": "network:host",
    "ipc": "ipc:host",
    "runtime": "runtime:acme",
    "driver": "driver:acme",
    "ulimit": "ulimit:nproc",
}


def needed_permissions(options: ContainerOptions) -> tuple[str, ...]:
    """Return what the container has beyond the closed list, as the values of --allow. A number at a device's end is *.

    Raises UsageError for a path or a variable that no --allow can permit.
    """
    return tuple(dict.fromkeys(_permissions_beyond_closed_list(options)))


def _permissions_beyond_closed_list(options: ContainerOptions) -> Iterator[str]:
    closed_lists: tuple[tuple[str, Iterable[str], tuple[str, ...]], ...] = (
        ("capability", sorted({name.upper().removeprefix("CAP_") for name in options.capabilities}), CAPABILITIES),
        ("group", options.groups, GROUPS),
        ("runtime", filter(None, [options.engine_runtime]), RUNTIMES),
        ("driver", filter(None, [options.request_driver]), DRIVERS),
        ("ulimit", options.ulimits, ULIMITS),
        ("security", options.security_options, ("no-new-privileges",)),
        ("network", [options.network], ("none",)),
        ("ipc", ["host"] if options.host_ipc else [], ()),
    )
    for kind, names, allowed_names in closed_lists:
        yield from (f"{kind}:{name}" for name in names if name not in allowed_names)
    for node in options.device_nodes:
        yield from (
            f"device:{re.sub('[0-9]+$', '*', path)}"
            for path in resolved_paths(node)
            if not DEVICE_NODES.fullmatch(path)
        )
    for mount in options.read_only_mounts:
        for path in resolved_paths(mount):
            is_below = any(str(parent) in MOUNT_FOLDERS for parent in PurePosixPath(path).parents)
            if not is_below or path.endswith(".sock"):
                yield f"mount:{path}"


def resolved_paths(path: str) -> list[str]:
    """Return the path without `..`, and what it is when links of this machine are followed, if that differs.

    Raises UsageError for a relative path, and for characters that the engine would read as its own.
    """
    if not path.startswith("/") or re.search(r"[:\x00-\x1f]", path):
        raise UsageError(f"the vendor's container: found the path {path!r}, expected an absolute one without ':'")
    normalised = "/" + os.path.normpath(path).lstrip("/")  # normpath keeps a second slash at the beginning
    return list(dict.fromkeys((normalised, os.path.realpath(normalised))))


def refuse_unknown_permissions(allow: Sequence[str]) -> None:
    """Raises UsageError for a value of --allow that names nothing that a container can be given."""
    for text in allow:
        kind, colon, name = text.partition(":")
        if kind not in PERMISSION_FORMS or not colon or not name:
            raise UsageError(
                f"--allow: found '{text}', expected one of the forms {', '.join(PERMISSION_FORMS.values())}"
            )


def allowed_permissions(options: ContainerOptions, allow: Sequence[str], vendor: str) -> tuple[str, ...]:
    """Return what the user allows and the container uses. Raises UsageError for what is not allowed."""
    try:
        check_variables(dict(options.environment), "container")
    except ValueError as error:
        raise UsageError(f"vendor {vendor}: container.environment: {error}") from None
    needed = needed_permissions(options)
    if missing := [need for need in needed if need not in allow]:
        flags = " ".join(f"--allow '{need}'" for need in missing)
        raise UsageError(
            f"vendor {vendor}: its container would be given {', '.join(missing)}, which is beyond the closed list of "
            f"docs/security.md. If you trust this vendor's folder with it, add {flags}"
        )
    return needed


def refuse_device_choice(vendor: VendorFile, tuning: Tuning) -> None:
    """Raises UsageError for a free choice of the variable by which the vendor chooses devices, whatever its name."""
    variable = vendor.visible_devices_variable
    if variable in tuning.environment:
        raise UsageError(
            f"{variable} cannot be set: the platform chooses the devices of vendor {vendor.name} by it; give their "
            "number in the case string, or set the variable for the whole command"
        )
