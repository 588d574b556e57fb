"""Checks by plans: each framework's launch, each row of tuning/, and the shipped cases at full scale."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from textwrap import shorten

from levelfield.catalog import lookup
from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry
from levelfield.catalog.tuning_changes import tuning_rows
from levelfield.errors import NotHere, UnknownName, UsageError
from levelfield.plan.permissions import needed_permissions
from levelfield.plan.request import Decision, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.run.launchers.local import LocalLauncher
from levelfield.run.runtimes.process_runtime import ProcessRuntime
from levelfield.specs.case import Precision, Scale
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content
from levelfield.specs.selector import Selector
from levelfield.specs.tuning import TuningRow
from levelfield.specs.vendor import HOST_KIND
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.subject import VendorSubject

LAUNCHED_DEVICES = 2  # devices
NODE_COUNTS = (1, 2, 4)
DEVICES_PER_NODE = 8  # of one node, as most makers build them
GIB = 2**30
MEMORY_ERROR = 0.15  # of an estimated memory, in nine of ten published rows: docs/planner-accuracy.md
MAX_REASON_LENGTH = 160  # characters of why a case has no plan, in whole words


def make_plan(selection: Selection, selector: Selector, scale: Scale, **changes: object) -> Plan:
    """Return the plan of a selection, for assumed devices. changes: of the request. Raises UsageError."""
    request = replace(UserRequest(scale, may_lack_hardware=True, python=sys.executable), **changes)  # type: ignore[arg-type]
    return resolve(Decision(str(selector.case), selector, selection, request, scale=scale), "check")


def select_without_devices(registry: Registry, selector: Selector) -> Selection:
    """Return what is found for the selector on a machine without such devices. Raises UsageError."""
    return replace(lookup.find_selection(registry, selector), devices=(), problem=None, notices=())


# ---- the launch of a training


def check_launch(subject: VendorSubject) -> str:
    """Check that each framework has a plan whose processes get the declared argv, variables, device and backend."""
    frameworks = subject.registry.frameworks_reaching(subject.spec)
    if not frameworks:
        raise Missing("frameworks: none", "name the torch device and the collective backend of each framework")
    subject.stage.replay(subject.outputs)
    for framework in frameworks:
        plan = _first_plan(subject, framework)
        access, paths = plan.access, RunPaths(subject.stage.runs / "launch")
        invalid_modules = [m for m in access.preload if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", m)]
        if invalid_modules:
            raise Fails(f"frameworks.{framework}: {access}", "give the names of modules to import")
        if not plan.hardware.is_host and access.device.lower() == HOST_KIND:
            raise Fails(
                f"frameworks.{framework}: device {access.device}, so every figure would be of the processors and carry "
                f"the name of {plan.hardware.chip.name}",
                "name the device that the framework has for this accelerator; only `device_kind: cpu` has device cpu",
            )
        job = job_content(plan, paths)
        if (job["device"], job["backend"], job["preload"]) != (access.device, access.backend, list(access.preload)):
            raise Fails(f"frameworks.{framework}: job.json has {job['device']}/{job['backend']}", "report this fault")
        for process in LocalLauncher().request(plan, paths, ProcessRuntime()).nodes[0].processes:
            if process.argv[0] != sys.executable or any(re.search(r"\{\w*\}", text) for text in process.argv):
                raise Fails(f"{framework}: argv {' '.join(process.argv)}", "correct launch.argv of implementation.yaml")
            expected = {"RANK": str(process.rank), "WORLD_SIZE": str(plan.world_size), **plan.hardware.visible}
            for name, value in {**plan.hardware.environment, **expected}.items():
                if (actual := process.environment.get(name)) != value:
                    advice = f"remove {name} from `environment` of vendor.yaml"
                    raise Fails(f"{framework}: {name} is {actual}, expected {value}", advice)
    return f"argv, variables, device and backend of {', '.join(frameworks)}"


def _first_plan(subject: VendorSubject, framework: str) -> Plan:
    """Return a plan of the first case that the framework supports on this kind, and plan it in a container as well."""
    registry = subject.registry
    if framework not in registry.frameworks:
        names = ", ".join(registry.frameworks)
        raise Fails(f"frameworks: unknown '{framework}'; known: {names}", "correct the name or remove it")
    reason = "no case fits"
    for name in sorted(registry.cases):
        selector = Selector(case=name, framework=framework, target=subject.name, devices=LAUNCHED_DEVICES)
        try:
            selection = lookup.find_selection(registry, selector)
            if {"base", framework} & set(subject.spec.images):
                allow = needed_permissions(
                    selection.adapter.container(subject.recorded_or_invented_devices())
                )  # check `privileges` reports it
                make_plan(selection, selector, "smoke", python=None, runtime="docker", allow=allow)
            return make_plan(selection, selector, "smoke")
        except UsageError as error:
            reason = str(error)
    raise Fails(
        f"frameworks: no plan for {framework}: {reason}", "remove the framework, or ask its authors for support"
    )


# ---- tuning/


def check_tuning(subject: VendorSubject) -> str:
    """Check that each file belongs to a known case, sets free fields only, and that each row gives a possible plan that
    fits the devices' memory."""
    files = sorted((subject.folder / "tuning").glob("*.yaml"))
    if not files:
        raise NotApplicable("no tuning/<case>.yaml: cases run as they are")
    plans = 0
    for case in (path.stem for path in files):
        try:
            subject.registry.case(case)
        except UnknownName as error:
            raise Fails(f"tuning/{case}.yaml: {error}", "give the file the name of a case, or remove it") from None
        for number, row in enumerate(tuning_rows(subject.registry, subject.name, case)):
            plans += _check_row(subject, case, number, row)
    return f"{len(files)} case(s), {plans} plan(s): {', '.join(path.stem for path in files)}"


def _check_row(subject: VendorSubject, case: str, number: int, row: TuningRow) -> int:
    """Return the number of plans. Raises Fails for a row that makes a plan impossible, that does not fit where a plan
    without it fits or where it names devices and nodes, or that applies nowhere."""
    plans, devices = 0, row.devices or DEVICES_PER_NODE
    frameworks = [row.framework] if row.framework else subject.registry.frameworks_reaching(subject.spec)
    chips = [row.chip] if row.chip else [chip.name for chip in subject.spec.chips]
    for framework, chip, nodes in itertools.product(frameworks, chips, [row.nodes] if row.nodes else NODE_COUNTS):
        selector = Selector(case=case, framework=framework, target=chip, nodes=nodes, devices=devices)
        try:
            selection = replace(lookup.find_selection(subject.registry, selector), devices=())
        except NotHere:
            continue  # the framework does not have the case or the vendor, whatever the row says
        is_possible, error = _plan_fault(selection, selector, row.scale)
        is_of_row = is_possible and row.devices and row.nodes
        if error and (is_of_row or not _plan_fault(replace(selection, tuning_rows=()), selector, row.scale)[1]):
            raise Fails(
                f"tuning/{case}.yaml: key 'rows.{number}': {framework} on {nodes} x {devices} {chip}: {error}",
                "correct the row, or add the condition `nodes`, `devices` or `framework` to it",
            )
        plans += is_possible
    if plans == 0:
        raise Fails(f"tuning/{case}.yaml: key 'rows.{number}': it applies nowhere", "correct its conditions")
    return plans


def _plan_fault(selection: Selection, selector: Selector, scale: Scale) -> tuple[bool, str | None]:
    """Return whether there is a plan, and what is wrong: why there is none, or by how much it does not fit."""
    try:
        plan = make_plan(selection, selector, scale)
    except UsageError as error:
        return False, str(error)
    needed, available = plan.expected_memory.total_bytes, plan.expected_memory.available_bytes
    if (
        selection.vendor.is_host or available is None or needed <= available * (1 + MEMORY_ERROR)
    ):  # a host's memory is this machine's
        return True, None
    what = f"{plan.tuning.layout} with micro-batch {plan.tuning.micro_batch}"
    return True, f"{what} needs {needed / GIB:,.1f} GiB on the fullest device; there are {available / GIB:,.1f} GiB"


# ---- the shipped cases


def check_cases(subject: VendorSubject) -> str:
    """Plan each case at full scale on one node of the first chip, and name the peaks that the chips lack for them."""
    if subject.spec.is_host:
        raise NotApplicable("the full scale is for accelerators")
    frameworks = subject.registry.frameworks_reaching(subject.spec)
    if not frameworks or not subject.spec.chips:
        raise Missing("no framework or no chip", "see the checks `launch` and `chips`")
    names, chip = sorted(subject.registry.cases), subject.spec.chips[0]
    refusal_reasons: dict[str, str] = {}  # of a case that no framework has a plan for: why the first one has none
    for name in names:
        reasons = []
        for framework in frameworks:
            selector = Selector(case=name, framework=framework, target=chip.name, devices=DEVICES_PER_NODE)
            try:
                make_plan(select_without_devices(subject.registry, selector), selector, "full")
                break
            except UsageError as error:
                reasons.append(" ".join(str(error).split()))
        else:
            refusal_reasons[name] = reasons[0]
    if len(refusal_reasons) == len(names):
        name, reason = next(iter(refusal_reasons.items()))
        raise Fails(
            f"none of {len(names)} cases has a plan on {DEVICES_PER_NODE} x {chip.name}: {name}: {reason}",
            "see `launch`",
        )
    summary = (
        f"{len(names) - len(refusal_reasons)} of {len(names)} cases have a plan on {DEVICES_PER_NODE} x {chip.name}"
    )
    unplanned_words = "; ".join(
        f"{name}: {shorten(reason, MAX_REASON_LENGTH, placeholder=' ...')}" for name, reason in refusal_reasons.items()
    )
    summary += f"; none: {unplanned_words}" if unplanned_words else ""
    cases_by_precision: dict[Precision, list[str]] = {}
    for name in names:
        cases_by_precision.setdefault(subject.registry.case(name).training.precision, []).append(name)
    for precision, used in sorted(cases_by_precision.items()):
        if lacking := [chip.name for chip in subject.spec.chips if precision not in chip.peaks]:
            others = f" and {len(used) - 1} other case{'s' if len(used) > 2 else ''}" if len(used) > 1 else ""
            summary += f". No {precision} peak, so no MFU without a probe in {used[0]}{others}: {', '.join(lacking)}"
    return summary
