"""`align diagnose`: find the first step and tensor in which two frameworks differ"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from levelfield.cli.command_line import Command
from levelfield.cli.named_runs import RUN_NAME, finished_run
from levelfield.cli.options import chips_option, json_option, python_option, registry_of
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.report.sheets import labelled, padded
from levelfield.report.words import wrapped
from levelfield.specs.free_fields import CODE_FIELDS, LAYERS
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from levelfield.catalog.registry import Registry
    from levelfield.measure.tensors import TensorDifference
    from levelfield.specs.paths import RunPaths
    from levelfield.specs.plan import Plan
    from levelfield.specs.reference import Reference
    from levelfield.specs.result import Alignment
    from levelfield.studies.diagnosis import Diagnosis, StepComparison

_HELP = """\
Find the first step and tensor in which a run's framework differs from another.
Both train a few steps again, in one process each. The comparison covers every
block's output, every gradient and every updated parameter of a step.
Exit code 4 when something differs, else 0. RUN/diagnosis/ keeps the short runs.

examples:
  run_benchmarks.py align diagnose latest
  run_benchmarks.py align diagnose RUN --against megatron --step 5
"""

BEFORE, AFTER = 6, 4  # the tensors in the table before and after the first that differs
USUAL_SUSPECT = 10  # the step without a loss curve to compare: late enough for small differences to add up


def arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("run", metavar="RUN", help=RUN_NAME)
    option("--against", metavar="FRAMEWORK", help="the other framework (default: the reference's, else torch)")
    python_option(parser, "the other framework's Python; default: an environment that Levelfield makes")
    option("--step", type=int, metavar="N", help="search steps 1 to N (default: to the first step beyond noise)")
    json_option(parser, ", with every tensor")
    chips_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Return 0 when everything agrees in one process, else 4. Raises RunFailed for a failed training."""
    from levelfield.catalog.lookup import reference_of
    from levelfield.judge.collector import collect
    from levelfield.rundir.directory import read_plan
    from levelfield.studies.diagnosis import first_difference

    registry = registry_of(options)
    paths = finished_run(options, options.run)
    plan = read_plan(paths)
    reference = reference_of(registry, plan)
    question = _question(options, registry, paths, plan, reference)
    suspect = _suspect(options.step, paths, plan, reference)
    found = first_difference(question, suspect)
    verdict = collect(paths).alignment
    if options.json:
        print(json_text(_as_json(question, verdict, suspect, found)))
    else:
        print("\n".join(_lines(plan, question, verdict, suspect, found)))
    return GateFailed.exit_code if found else 0


def _question(
    options: argparse.Namespace, registry: Registry, paths: RunPaths, plan: Plan, reference: Reference | None
) -> Diagnosis:
    from levelfield.specs.tuning import TuningChoice
    from levelfield.studies.diagnosis import ComparedTraining, Diagnosis

    own, other = plan.implementation.label, options.against or (reference.framework if reference else "torch")
    if own == other:
        raise UsageError(
            f"diagnose: {paths.root.name} was trained with {own}; choose another framework: --against FRAMEWORK"
        )
    same = {"micro_batch": plan.tuning.micro_batch, "threads": plan.tuning.threads, "layout": "DP1TP1PP1"}
    mine = {name: getattr(plan.tuning, name) for name in (*CODE_FIELDS, LAYERS, "environment")}
    given = None if plan.environment.folder else plan.environment.python
    terminal, text = Terminal(quiet=options.json), "{}:{}:{}:1:1".format
    return Diagnosis(
        registry=registry,
        diagnosed=ComparedTraining(text(plan.case, own, plan.hardware.vendor), TuningChoice(**same, **mine), given),
        expected=ComparedTraining(text(plan.case, other, plan.hardware.vendor), TuningChoice(**same), options.python),
        scale=plan.scale,
        corpus=None if plan.corpus.prefix is None else terminal.checked_corpus(plan.corpus.prefix),
        folder=paths.root / "diagnosis",
        listener=terminal.listener(),
    )


def _suspect(asked: int | None, paths: RunPaths, plan: Plan, reference: Reference | None) -> int:
    """Return the last step to search: the given one, else the first whose loss is beyond the noise."""
    from levelfield.judge.verdict import first_step_beyond
    from levelfield.rundir.raw_files import read_raw

    last = plan.work.training.steps - 1
    if asked is not None and not 1 <= asked <= last:
        raise UsageError(f"--step: found {asked}, expected 1 to {last}")
    beyond = None if asked or reference is None else first_step_beyond(read_raw(paths), reference)
    return min(asked or beyond or USUAL_SUSPECT, last)


def _lines(
    plan: Plan, question: Diagnosis, verdict: Alignment, suspect: int, found: StepComparison | None
) -> Iterator[str]:
    rows = [
        ("the run", f"{verdict.verdict}: {verdict.reason}"),
        ("compared", f"{question.diagnosed.text} and {question.expected.text}, one process each"),
    ]
    first = 0
    if found is None:
        compared = ", ".join(map(str, sorted(question.probes)))
        rows.append(("result", f"both agree in every tensor of steps {compared}"))
        if plan.world_size > 1:
            why = f"the layout {plan.tuning.layout} causes the difference, not the model or its optimizer"
        else:
            why = f"nothing differs up to step {suspect}; search further with --step N"
        rows.append(("so", why))
    elif found.inputs:
        rows.append(("result", f"the inputs differ: {', '.join(found.inputs[:5])}"))
    else:
        first = next(number for number, tensor in enumerate(found.tensors) if tensor.differs)
        named = f"{found.tensors[first].name} is the first tensor that differs"
        rows += [("result", f"step {found.step}: {named}"), ("so", _meaning(found, first))]
    yield from (labelled(*row, 11) for row in rows)
    if found is None or found.inputs:
        return
    yield ""
    near, later = found.tensors[max(0, first - BEFORE) : first + AFTER + 1], found.tensors[first + AFTER + 1 :]
    width = max(len(tensor.name) for tensor in near)
    for tensor in near:
        said = f" {tensor.value:.1e} (limit {tensor.limit:.1e}) {tensor.detail}"
        yield wrapped(padded(("DIFFERS" if tensor.differs else "agrees", tensor.name, said), (7, width), " "), 11)
    if later:
        yield f"... {sum(tensor.differs for tensor in later)} of {len(later)} later tensors differ"


def _meaning(found: StepComparison, first: int) -> str:
    kind, _, rest = found.tensors[first].name.partition(".")
    before = (
        f"{found.tensors[first - 1].name} and all before it agree" if first else "it is the first tensor of the step"
    )
    if kind == "updated":
        why = "learning rate, clipping, weight decay (which parameters have it), Adam's constants"
    elif kind == "gradient":
        why = f"the backward pass through {rest.rpartition('.')[0] or rest}, or a scale on all gradients"
    elif kind == "layers":
        why = f"attention, MLP, norms, positions or the mapping of the weights of block {rest}"
    else:
        why = {"embedding": "token and position embeddings", "final_norm": "the last norm", "logits": "the head"}[kind]
    return f"{before}; check {why}"


def _as_json(question: Diagnosis, verdict: Alignment, suspect: int, found: StepComparison | None) -> dict[str, Any]:
    return {
        "run": {"verdict": verdict.verdict, "reason": verdict.reason},
        "found": question.diagnosed.text,
        "expected": question.expected.text,
        "suspected_step": suspect,
        "steps_compared": sorted(question.probes),
        "first_step": found.step if found else None,
        "inputs": list(found.inputs) if found else [],
        "first_tensor": next((t.name for t in found.tensors if t.differs), None) if found else None,
        "tensors": [_tensor(t) for t in (found or question.probes[max(question.probes)]).tensors],
    }


def _tensor(tensor: TensorDifference) -> dict[str, Any]:
    value = tensor.value if math.isfinite(tensor.value) else None
    return {
        "name": tensor.name, "value": value, "limit": tensor.limit, "differs": tensor.differs, "detail": tensor.detail
    }  # fmt: skip


COMMANDS = {"align diagnose": Command(_HELP, arguments, execute, trains=True)}
