"""The report of one run: in lines of a terminal, and as Markdown by its template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from levelfield.report import result_words, words
from levelfield.report.escapes import code_span, escape_markdown
from levelfield.report.sheets import LabelledText, labelled_line
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result
from levelfield.specs.run_figures import HEADLINE_FORMULA
from levelfield.specs.variables import report_variables

ExplainedFigure = tuple[str, str, str]  # label, value, and how it is known


def result_lines(result: Result, extra_figures: Iterable[ExplainedFigure] = ()) -> list[str]:
    """Return one result in lines of at most 80 columns, with the extra figures last."""
    title = f"{result.case} ({result.scale})  {result.framework} {result.framework_version}  {result.layout}"
    rows = [
        *_result_rows(result),
        *((name, text) for label, value, origin in extra_figures for name, text in ((label, value), ("", origin))),
    ]
    return [words.wrapped(title, 9), *(labelled_line(*row, 9) for row in rows)]


def _result_rows(result: Result) -> Iterator[LabelledText]:
    yield "result", result_words.status_in_words(result)
    yield from (("", reason) for reason in result.status.reasons)
    throughput, mfu = result.throughput, result_words.find_utilisation(result, HEADLINE_FORMULA)
    if throughput:
        yield "speed", f"{words.format_number(throughput.tokens_per_second_per_device)} tokens/s/device"
    yield "verdict", f"{result.alignment.verdict}: {result_words.reason_without_limits(result.alignment)}"
    if result.alignment.limits:
        yield "", f"limits: {result_words.limits_basis(result.alignment.limits)}"
    yield from _next_steps(result)
    name, memory = result_words.first_known_memory(result)
    yield "memory", f"{words.gib(memory)} ({name}), predicted {result_words.predicted_memory_text(result)}"
    if result.memory.expectation and result.memory.expectation.remark:
        yield "", f"remark: {result.memory.expectation.remark}"
    if mfu:
        peak = f"of {mfu.peak_tflops:.4g} TFLOP/s" if mfu.peak_tflops else ""
        yield "MFU", f"{result_words.utilisation_percent(mfu)} {mfu.formula} {peak}".rstrip()
        yield "", result_words.peak_origin(mfu.peak_source) if mfu.peak_source else f"{mfu.reason}"
    above_peak = (use for use in result.utilisation if use.is_above_peak and use != mfu)
    yield from (("", f"{use.kind} {use.formula}: {use.reason}") for use in above_peak)
    first, last = words.format_number(result.loss.first, 4), words.format_number(result.loss.tail_mean, 4)
    yield "loss", f"{first} -> {last}, mean of the last steps"
    yield from (("", sentence) for sentence in result_words.to_loss_lines(result))
    if throughput:
        step = throughput.step_seconds
        yield "step", f"{step.median * 1000:,.1f} ms median, {step.p90 * 1000:,.1f} ms p90, {step.steps} steps"
        yield from (("", f"flagged: {result_words.flag_in_words(flag)}") for flag in step.flags)
    if result.disturbance:
        yield from (("", f"flagged: {flag}") for flag in result.disturbance.flags)
    yield from (("waited", sentence) for sentence in result_words.pace_lines(result))
    yield from (("" if number else "energy", line) for number, line in enumerate(result_words.energy_lines(result)))
    yield from (("tuning", sentence) for sentence in result_words.tuning_lines(result))
    yield from (("experts", sentence) for sentence in result_words.expert_lines(result))
    yield from result_words.node_rows(result)
    if result.preflight:
        yield "before", result.preflight
    yield from (("warning", warning) for warning in result.warnings)


def _next_steps(result: Result) -> Iterator[LabelledText]:
    """Yield what a reader does next about a run that is not as expected."""
    verdict = result.alignment
    if verdict.verdict in ("different", "not comparable") and "initial_weights" in verdict.reason:
        check = f"`framework check {result.framework}`"
        yield "", f"next: {check} tells whether the training begins with the weights that it is given"
    elif verdict.verdict == "different":
        yield "", f"next: `align diagnose {result.run_id}` names the first step and tensor that differ"
    elif result.status.word == "failed" and result.status.failure in ("error", "environment"):
        yield "", "next: logs/ of the run has all that each rank printed, such as the place in the code"


def run_report(result: Result, plan: Plan, extra_figures: Iterable[ExplainedFigure] = ()) -> str:
    """Return report.md: every figure with its origin, or the reason why it is missing; the extra figures last."""
    variables = report_variables(result.inherited)
    inherited = [f"{name}={text}" for name, text in variables.items()]
    if others := len(result.inherited) - len(variables):
        inherited.append(
            f"{others} {'more' if variables else 'that are not known to change a training'}: provenance.json"
        )
    return _template().render(r=result, plan=plan, more=tuple(extra_figures), inherited_variables=", ".join(inherited))


@cache  # compiling it takes longer than all else of a report
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("levelfield", "report"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
        finalize=escape_markdown,  # an undefined value raises
    )
    environment.filters["code"] = code_span
    texts = (
        words.format_number,
        words.gib,
        result_words.flag_in_words,
        result_words.utilisation_percent,
        result_words.status_in_words,
        result_words.memory_rows,
    )
    lines = (result_words.tuning_lines, result_words.to_loss_lines, result_words.pace_lines, result_words.expert_lines)
    environment.globals.update({write.__name__: write for write in (*texts, *lines)})
    return environment.get_template("run.md.j2")
