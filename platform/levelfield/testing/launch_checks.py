"""Checks of the launch of a training: a plan for each framework that vendor.yaml names."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

from levelfield.catalog import lookup
from levelfield.contracts.execution import ProcessWork
from levelfield.errors import UsageError
from levelfield.plan.permissions import needs
from levelfield.plan.request import Decision, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.run.launchers.local import LocalLauncher
from levelfield.run.runtimes.process_runtime import ProcessRuntime
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_of
from levelfield.specs.selector import Selector
from levelfield.testing.findings import Fails, Missing
from levelfield.testing.subject import VendorSubject

DEVICES = 2


def launch(subject: VendorSubject) -> str:
    """Check that each framework has a plan whose processes get the declared argv, variables, device and backend."""
    frameworks = subject.registry.reaching(subject.spec)
    if not frameworks:
        raise Missing("frameworks: none", "name the torch device and the collective backend of each framework")
    subject.stage.replay(subject.outputs)
    for framework in frameworks:
        _check_framework(subject, framework)
    return f"argv, variables, device and backend of {', '.join(frameworks)}"


def _check_framework(subject: VendorSubject, framework: str) -> None:
    plan = _plan(subject, framework)
    access, paths = plan.access, RunPaths(subject.stage.runs / "launch")
    strange = [m for m in access.preload if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", m)]
    if strange or not access.device.strip() or not access.backend.strip():
        raise Fails(f"frameworks.{framework}: {access}", "give device, backend and the names of modules to import")
    job = job_of(plan, paths)
    if (job["device"], job["backend"], job["preload"]) != (access.device, access.backend, list(access.preload)):
        raise Fails(f"frameworks.{framework}: job.json has {job['device']}/{job['backend']}", "report this fault")
    request = LocalLauncher().request(plan, paths, ProcessRuntime())
    for process in request.nodes[0].processes:
        _check_process(framework, plan, process)


def _check_process(framework: str, plan: Plan, process: ProcessWork) -> None:
    if process.argv[0] != sys.executable or any(re.search(r"\{\w*\}", text) for text in process.argv):
        raise Fails(f"{framework}: argv {' '.join(process.argv)}", "correct launch.argv of implementation.yaml")
    expected = {"RANK": str(process.rank), "WORLD_SIZE": str(plan.world_size), **plan.hardware.visible}
    for name, value in {**plan.hardware.environment, **expected}.items():
        if process.environment.get(name) != value:
            raise Fails(f"{framework}: {name} is {process.environment.get(name)}, expected {value}", _advice(name))


def _advice(name: str) -> str:
    return f"remove {name} from `environment` of vendor.yaml"


def _plan(subject: VendorSubject, framework: str) -> Plan:
    """Return a plan for assumed devices, of the first case that the framework supports on this kind."""
    registry = subject.registry
    if framework not in registry.frameworks:
        known = ", ".join(registry.frameworks)
        raise Fails(f"frameworks: unknown '{framework}'; known: {known}", "correct the name or remove it")
    why = "no case fits"
    for name in sorted(registry.cases):
        selector = Selector(case=name, framework=framework, target=subject.name, devices=DEVICES)
        try:
            return _resolved(subject, selector)
        except UsageError as error:
            why = str(error)
    raise Fails(f"frameworks: no plan for {framework}: {why}", "remove the framework, or ask its authors for support")


def _resolved(subject: VendorSubject, selector: Selector) -> Plan:
    found = lookup.find(subject.registry, selector)
    request = UserRequest("smoke", assume=True, python=sys.executable)
    decision = Decision(selector.case, selector, found, request, scale="smoke")
    if {"base", selector.framework} & set(subject.spec.images):
        allow = needs(found.adapter.container(subject.devices_or_two()))  # check `privileges` reports it
        resolve(replace(decision, request=replace(request, python=None, runtime="docker", allow=allow)), "launch")
    return resolve(decision, "launch")
