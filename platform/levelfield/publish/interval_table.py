"""A stored run as the table of steps that OneFlow's training prints."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from levelfield.errors import UsageError
from levelfield.measure.throughput import steps_from_start
from levelfield.measure.validity import loss_curve
from levelfield.report.escapes import table
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result

_COLUMNS = ("batches", "micro_batches", "samples", "throughput", "latency", "loss")


def interval_table(result: Result, plan: Plan, raw: RawRecords, interval: int) -> str:
    """Return the table that OneFlow's training prints in Markdown, with a row for every `interval` batches.

    Samples/s and seconds a batch are the means of the interval, the loss is that of its last batch. All batches count
    from the first one, which OneFlow's do too.

    Raises UsageError where the run has fewer batches, or is not valid.
    """
    rows = [] if result.status.is_unproven else list(_rows(plan, raw, interval))
    if not rows:
        why = result.status.word if result.status.is_unproven else f"fewer than {interval} batches"
        raise UsageError(f"--log-interval {interval}: {result.run_id}: found {why}, expected a row's batches")
    return "\n".join((f"{result.run_id}\n", *table(_COLUMNS, rows, " --- "), ""))


def _rows(plan: Plan, raw: RawRecords, interval: int) -> Iterator[tuple[str, ...]]:
    window, batch = plan.work.window, plan.work.training.global_batch
    seconds = steps_from_start(raw.steps, raw.begins, window.first_step, window.last_step)
    losses = loss_curve(raw.steps)
    for last in range(interval, len(seconds) + 1, interval):
        latency = fmean(seconds[last - interval : last])
        loss = f"{losses[last]:.5f}" if last in losses else "/"
        counts = (last, last * plan.accumulation, last * batch)
        yield (*map(str, counts), f"{batch / latency:.5f}", f"{latency:.5f}", loss)
