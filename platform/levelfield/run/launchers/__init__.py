"""The launchers: ways to reach nodes. Their classes implement the Launcher contract."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import Launcher, RemoteLauncher, Runtime, Say
from levelfield.errors import UsageError
from levelfield.run.launchers.local import LocalLauncher
from levelfield.run.runtimes.process_runtime import InsideRuntime, ProcessRuntime
from levelfield.specs.plan import Plan

LOCAL = "local"
GROUP = "levelfield.launchers"
OWN_CLASS = "SiteLauncher"  # in launchers/NAME/launcher.py of a folder of plugins
_BUILT_IN = (
    EntryPoint("ssh", "levelfield.run.launchers.ssh.ssh_launcher:SshLauncher", GROUP),
    EntryPoint("slurm", "levelfield.run.launchers.slurm.slurm_launcher:SlurmLauncher", GROUP),
    EntryPoint("kubernetes", "levelfield.run.launchers.kubernetes.kubernetes_launcher:KubernetesLauncher", GROUP),
)


def means(plan: Plan) -> tuple[Runtime, Launcher]:
    """Return the runtime of the plan, and the launcher for it. Raises UsageError for a launcher that is not here."""
    if plan.launch:
        launcher = _remote(plan.launch.launcher, plan.launch.code)
        _refuse_own_keys(launcher, plan.launch.site.own)
        return launcher.runtime(plan), launcher
    if plan.runtime == "docker":
        # imported here: the SDK loads in a third of a second, and only runs in containers need it
        from levelfield.run.launchers.container_launcher import ContainerLauncher
        from levelfield.run.runtimes.docker import DockerRuntime

        return DockerRuntime(), ContainerLauncher()
    return InsideRuntime() if plan.runtime == "inside" else ProcessRuntime(), LocalLauncher()


def speaking(launcher: Launcher, say: Say) -> Launcher:
    """Return the launcher with a place for its sentences, such as those about a queue; not all have any."""
    saying: Callable[[Say], Launcher] | None = getattr(launcher, "saying", None)
    return saying(say) if saying else launcher


def launcher_code(name: str, plugins: Sequence[Path]) -> str | None:
    """Return the file of a site's own launcher in a folder of plugins; None for the other launchers."""
    files = (folder / "launchers" / name / "launcher.py" for folder in plugins)
    return next((str(file.absolute()) for file in files if file.is_file()), None)


def launcher_names(plugins: Sequence[Path]) -> list[str]:
    """Return the launchers of many machines by name: the built-in ones, those of packages, and those of plugins."""
    own = (file.parent.name for folder in plugins for file in folder.glob("launchers/*/launcher.py"))
    return sorted({*(point.name for point in (*_BUILT_IN, *entry_points(group=GROUP))), *own})


def _remote(name: str, code: str | None) -> RemoteLauncher:
    if code is not None:
        return _loaded(Path(code))
    for point in (*_BUILT_IN, *entry_points(group=GROUP)):
        if point.name == name:
            return point.load()()  # type: ignore[no-any-return]
    raise UsageError(f"launcher {name}: found none here; known: {', '.join(launcher_names([]))}")


def _refuse_own_keys(launcher: RemoteLauncher, given: Iterable[str]) -> None:
    """Raises UsageError for a key of the site's file that the launcher does not read."""
    known = tuple(getattr(launcher, "own_keys", ()))
    if strange := sorted(set(given) - set(known)):
        expected = f"one of {', '.join(known)}" if known else f"none, as launcher {launcher.name} has none"
        raise UsageError(f"site, own: found {', '.join(strange)}, expected {expected}")


def _loaded(path: Path) -> RemoteLauncher:
    """Return the launcher of a file. Raises UsageError where the file has none."""
    spec = importlib.util.spec_from_file_location(f"levelfield_launcher_{path.parent.name}", path)
    module: Any = importlib.util.module_from_spec(spec) if spec else None
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        return getattr(module, OWN_CLASS)()  # type: ignore[no-any-return]
    except Exception as error:  # a site's file may raise anything
        raise UsageError(
            f"{path}: {type(error).__name__}: {error}; expected a class {OWN_CLASS}, as docs/writing-a-launcher.md says"
        ) from None
