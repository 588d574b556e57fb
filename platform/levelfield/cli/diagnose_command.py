"""`align diagnose`: find the first step and tensor in which two frameworks differ"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    RUN_HELP,
    add_chips_option,
    add_json_option,
    add_python_option,
    registry_of,
    runs_folder,
)
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.report.sheets import labelled_line, pad_row
from levelfield.report.words import wrapped
from levelfield.rundir.directory import find_finished_run
from levelfield.specs.free_fields import CODE_FIELDS, RECOMPUTE_LAYERS
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from levelfield.catalog.registry import Registry
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

TENSORS_BEFORE, TENSORS_AFTER = 6, 4  # the first that differs, in the table
DEFAULT_LAST_STEP = 10  # without a loss curve to compare; late enough for small differences to add up


def add_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("run", metavar="RUN", help=RUN_HELP)
    option("--against", metavar="FRAMEWORK", help="the other framework (default: the reference's, else torch)")
    add_python_option(parser, "the other framework's Python; default: an environment that Levelfield makes")
    option("--step", type=int, metavar="N", help="search steps 1 to N (default: to the first step beyond noise)")
    add_json_option(parser, ", with every tensor")
    add_chips_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Return 0 when everything agrees in one process, else 4. Raises RunFailed for a failed training."""
    from levelfield.catalog.lookup import find_reference
    from levelfield.judge.collector import collect
    from levelfield.rundir.directory import read_plan
    from levelfield.studies.diagnosis import first_difference

    registry = registry_of(options)
    paths = find_finished_run(runs_folder(options), options.run)
    plan = read_plan(paths)
    reference = find_reference(registry, plan)
    framework = options.against or (reference.framework if reference else "torch")
    diagnosis = _create_diagnosis(registry, paths, plan, framework, options.python, Terminal(quiet=options.json))
    last_step = _choose_last_step(options.step, paths, plan, reference)
    difference = first_difference(diagnosis, last_step)
    verdict = collect(paths).alignment
    if options.json:
        print(json_text(_diagnosis_values(diagnosis, verdict, last_step, difference)))
    else:
        print("\n".join(_lines(plan, diagnosis, verdict, last_step, difference)))
    return GateFailed.exit_code if difference else 0


def _create_diagnosis(
    registry: Registry, paths: RunPaths, plan: Plan, framework: str, python: str | None, terminal: Terminal
) -> Diagnosis:
    """Return the comparison, not yet run, of the run's training with one by `framework` in `python`."""
    from levelfield.specs.tuning import TuningChoice
    from levelfield.studies.diagnosis import ComparedTraining, Diagnosis

    trained_framework, tuning = plan.implementation.label, plan.tuning
    if trained_framework == framework:
        raise UsageError(
            f"diagnose: {paths.root.name} was trained with {trained_framework}; "
            "choose another framework: --against FRAMEWORK"
        )
    shared_choices = {"micro_batch": tuning.micro_batch, "threads": tuning.threads, "layout": "DP1TP1PP1"}
    run_choices = {name: getattr(tuning, name) for name in (*CODE_FIELDS, RECOMPUTE_LAYERS, "environment")}
    run_python, case_string = None if plan.environment.folder else plan.environment.python, "{}:{}:{}:1:1".format
    return Diagnosis(
        registry=registry,
        diagnosed_training=ComparedTraining(
            case_string(plan.case, trained_framework, plan.hardware.vendor),
            TuningChoice(**shared_choices, **run_choices),
            run_python,
        ),
        expected_training=ComparedTraining(
            case_string(plan.case, framework, plan.hardware.vendor), TuningChoice(**shared_choices), python
        ),
        scale=plan.scale,
        corpus=None if plan.corpus.prefix is None else terminal.check_corpus(plan.corpus.prefix),
        folder=paths.root / "diagnosis",
        listener=terminal.listener(),
    )


def _choose_last_step(step: int | None, paths: RunPaths, plan: Plan, reference: Reference | None) -> int:
    """Return the last step to search: `step`, else the first whose loss is beyond the noise, else a default."""
    from levelfield.judge.verdict import first_step_beyond_noise
    from levelfield.rundir.raw_files import read_raw

    max_step = plan.work.training.steps - 1
    if step is not None and not 1 <= step <= max_step:
        raise UsageError(f"--step: found {step}, expected 1 to {max_step}")
    step_beyond_noise = None if step or reference is None else first_step_beyond_noise(read_raw(paths), reference)
    return min(step or step_beyond_noise or DEFAULT_LAST_STEP, max_step)


def _lines(
    plan: Plan, diagnosis: Diagnosis, verdict: Alignment, last_step: int, difference: StepComparison | None
) -> Iterator[str]:
    diagnosed, expected = diagnosis.diagnosed_training, diagnosis.expected_training
    rows = [
        ("the run", f"{verdict.verdict}: {verdict.reason}"),
        ("compared", f"{diagnosed.case_string} and {expected.case_string}, one process each"),
    ]
    first_index = 0
    if difference is None:
        steps = ", ".join(map(str, sorted(diagnosis.probes)))
        rows.append(("result", f"both agree in every tensor of steps {steps}"))
        if plan.world_size > 1:
            cause = f"the layout {plan.tuning.layout} causes the difference, not the model or its optimizer"
        else:
            cause = f"nothing differs up to step {last_step}; search further with --step N"
        rows.append(("so", cause))
    elif difference.inputs:
        rows.append(("result", f"the inputs differ: {', '.join(difference.inputs[:5])}"))
    else:
        first_index = next(number for number, tensor in enumerate(difference.tensors) if tensor.differs)
        result = f"{difference.tensors[first_index].name} is the first tensor that differs"
        rows += [("result", f"step {difference.step}: {result}"), ("so", _likely_causes(difference, first_index))]
    yield from (labelled_line(*row, 11) for row in rows)
    if difference is None or difference.inputs:
        return
    yield ""
    end = first_index + TENSORS_AFTER + 1
    nearby_tensors, later_tensors = (
        difference.tensors[max(0, first_index - TENSORS_BEFORE) : end],
        difference.tensors[end:],
    )
    width = max(len(tensor.name) for tensor in nearby_tensors)
    for tensor in nearby_tensors:
        limit = f" {tensor.value:.1e} (limit {tensor.limit:.1e}) {tensor.detail}"
        yield wrapped(pad_row(("DIFFERS" if tensor.differs else "agrees", tensor.name, limit), (7, width), " "), 11)
    if later_tensors:
        yield f"... {sum(tensor.differs for tensor in later_tensors)} of {len(later_tensors)} later tensors differ"


def _likely_causes(difference: StepComparison, first_index: int) -> str:
    kind, _, tensor_path = difference.tensors[first_index].name.partition(".")
    module = tensor_path.rpartition(".")[0]
    context = "it is the first tensor of the step"
    if first_index:
        context = f"{difference.tensors[first_index - 1].name} and all before it agree"
    causes = {
        "updated": "learning rate, clipping, weight decay (which parameters have it), Adam's constants",
        "gradient": f"the backward pass through {module or tensor_path}, or a scale on all gradients",
        "layers": f"attention, MLP, norms, positions or the mapping of the weights of block {tensor_path}",
        "embedding": "token and position embeddings",
        "final_norm": "the last norm",
        "logits": "the head",
    }
    return f"{context}; check {causes[kind]}"


def _diagnosis_values(
    diagnosis: Diagnosis, verdict: Alignment, last_step: int, difference: StepComparison | None
) -> dict[str, Any]:
    tensors = [
        {"name": t.name, "value": t.value if math.isfinite(t.value) else None, "limit": t.limit, "differs": t.differs}
        | {"detail": t.detail}
        for t in (difference or diagnosis.probes[max(diagnosis.probes)]).tensors
    ]
    return {
        "run": {"verdict": verdict.verdict, "reason": verdict.reason},
        "found": diagnosis.diagnosed_training.case_string,
        "expected": diagnosis.expected_training.case_string,
        "suspected_step": last_step,
        "steps_compared": sorted(diagnosis.probes),
        "first_step": difference.step if difference else None,
        "inputs": list(difference.inputs) if difference else [],
        "first_tensor": next((t.name for t in difference.tensors if t.differs), None) if difference else None,
        "tensors": tensors,
    }


COMMANDS = {"align diagnose": Command(_HELP, add_options, execute, trains=True)}
