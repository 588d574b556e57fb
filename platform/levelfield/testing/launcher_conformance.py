"""The suite for launchers as a test class for an author's own CI. pytest runs it; this module does not import it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from levelfield.run.launchers import launcher_code
from levelfield.specs.base import load
from levelfield.specs.site import HostsFile, LaunchPlan, Site
from levelfield.testing.findings import NotOk
from levelfield.testing.launcher_checks import LAUNCHER_CHECKS
from levelfield.testing.launcher_subject import LauncherSubject, processes_here


class LauncherConformance:
    """The base of a test class: a subclass named Test... with `launcher` has one test for each check.

    plugins: folders with launchers/NAME/launcher.py. site: the site's file. hosts: a hosts file. runs: a folder that
    the nodes see, where they must; default: a temporary one. requests_only: no runs, for a machine without the engine.
    """

    launcher: ClassVar[str]
    plugins: ClassVar[Sequence[Path]] = ()
    site: ClassVar[Path | None] = None
    hosts: ClassVar[Path | None] = None
    runs: ClassVar[Path | None] = None
    nodes: ClassVar[int] = 2
    requests_only: ClassVar[bool] = False

    @staticmethod
    def left(mark: str) -> Sequence[str]:
        """Return the processes on the nodes whose variable DRILL_MARK has this value; by default this machine's."""
        return processes_here(mark)

    @classmethod
    def launch_plan(cls) -> LaunchPlan:
        """Return how the nodes are reached."""
        site = load(Site, cls.site) if cls.site else Site()
        hosts = load(HostsFile, cls.hosts).hosts[: cls.nodes] if cls.hosts else ()
        return LaunchPlan(launcher=cls.launcher, code=launcher_code(cls.launcher, cls.plugins), site=site, hosts=hosts)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Generate one test for each check, with the name of the check."""
        if "launcher_check" in metafunc.fixturenames:
            names = [check.name for check in LAUNCHER_CHECKS if not (self.requests_only and check.whole)]
            metafunc.parametrize("launcher_check", names)

    def test_launcher(self, launcher_check: str) -> None:
        check = next(check for check in LAUNCHER_CHECKS if check.name == launcher_check)
        try:
            check.run(self._subject())
        except NotOk as found:
            raise AssertionError(f"{check.name}: {found.says}. {found.do}") from None

    @classmethod
    def _subject(cls) -> LauncherSubject:
        """Return the state of this test class, which its checks share. A temporary folder goes with the process."""
        if cls not in _SUBJECTS:
            held = None if cls.runs else tempfile.TemporaryDirectory(prefix="levelfield-launcher-")
            runs = cls.runs or Path(str(held and held.name))
            plugins = tuple(path.absolute() for path in cls.plugins)
            _SUBJECTS[cls] = LauncherSubject(cls.launch_plan(), runs, plugins, cls.nodes, cls.left, held)
        return _SUBJECTS[cls]


_SUBJECTS: dict[type[LauncherConformance], LauncherSubject] = {}
