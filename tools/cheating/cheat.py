"""The cheats: what a vendor's or a framework's plugin does to a run, and what tells it in the result.

The plugins beside this file do one of them, by its name in CHEAT.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHIP, HOST = "C1", "cpu"  # the pretended chip of the plugins, and the shipped vendor of this machine's processors
PROBE = ("--probe",)
STALE = "the tool may repeat an old one"
CLOCK = "clock: rank 0 counted"


@dataclass(frozen=True)
class Cheat:
    """tells: a pattern of the sentence that names it; None: nothing does, and docs/evidence.md says so."""

    name: str
    what: str  # the plugin does
    tells: str | None
    target: str = HOST
    options: tuple[str, ...] = ()
    interval: float = 0.1  # seconds between two readings of telemetry, of a window that may last half a second

    @property
    def words(self) -> str:
        """Return its name as the docs print it."""
        return self.name.replace("_", " ")


VENDOR_CHEATS = (
    Cheat("samples_doubled", "gives a second sample of each device, of a fifth of the power", "several samples", CHIP),
    Cheat("counter_slow", "halves the energy counter", "energy counter gives .* beside it", CHIP, interval=0.04),
    Cheat("counter_backwards", "has an energy counter that falls", "counter went backward", CHIP),
    Cheat("power_in_kilowatts", "gives kilowatts for watts", "no chip's power", CHIP),
    Cheat(
        "power_constant", "gives one power before and in the training", f"energy: a step|{STALE}", CHIP, interval=0.04
    ),
    Cheat("power_stale", "repeats the first power of the training", STALE, CHIP, interval=0.04),
    Cheat("used_memory_zero", "gives 0 bytes of used memory", "device-used peak of device 0 is 0 bytes", CHIP),
    Cheat("used_memory_tiny", "gives 4 KiB of used memory", "device-used peak is 4,096 bytes", CHIP),
    Cheat("capacity_inflated", "gives four times the chip's memory", "total memory is 4294967296 bytes", CHIP),
    Cheat("load_constant", "gives 99 % of load, always", "others use device 0: .* load 99%", CHIP),
    Cheat("temperature_text", "gives a temperature as text", "expected a finite number or None", CHIP),
    Cheat("named_as_another", "has a tool that names an H100", "which is H100-SXM5-80GB of vendor nvidia", CHIP),
    Cheat("named_as_sibling", "counts a chip as its maker's slower one", "which is C2 of vendor cheating", CHIP),
    Cheat("identity_shared", "lists one device twice", "devices 0, 1 have one identity", CHIP),
    Cheat("all_scaled_alike", "halves power and counter in all readings, and invents a driver", None, CHIP),
)
FRAMEWORK_CHEATS = (
    Cheat("peak_too_high", "has a probe that gives a million times the peak", "is refused: .* at most", HOST, PROBE),
    Cheat("peak_too_low", "has a probe that gives a fifth of the peak", "numpy's product", HOST, PROBE),
    Cheat("version_invented", "reports a version that it does not have", "reports version 9.9.9"),
    Cheat("clock_slow", "takes its times from a clock of a quarter of the speed", f"{CLOCK}|above the peak"),
    Cheat("even_steps", "computes the times of its steps", f"last the same to a microsecond|{CLOCK}"),
    Cheat("memory_zero", "reports 0 bytes of memory", "process peak of rank 0 is 0 bytes"),
    Cheat("memory_little", "reports less memory than its process has", "the operating system showed"),
    Cheat("telemetry_rewritten", "halves the power in the platform's own file", "found other lines", CHIP),
    Cheat("half_of_the_batch", "trains on half of each batch", "first step: "),
    Cheat("one_batch", "trains on the first batch alone", "gradients: "),
    Cheat("every_second_step", "leaves out every second step", "gradients: |learning rate"),
    Cheat("fewer_bits", "cuts weights to bf16 in an fp32 run", "first step: "),
    Cheat("one_layer", "computes one layer of two", "are exactly 0"),
    Cheat("losses_copied", "copies the reference's losses, and trains nothing", "gradients: "),
    Cheat("losses_and_norms_copied", "copies its gradient norms as well", "final weights: "),
    Cheat("all_copied", "copies all that is compared, and computes nothing", "processors: |time: a step lasted"),
    Cheat("work_moved", "trains before step 1, and then repeats its records", "processors: |time: a step lasted"),
    Cheat("window_omitted", "copies the window, and computes the steps before", "processors: |steps before it"),
    Cheat("window_shortened", "copies two of three steps of the window", "steps before it"),
    Cheat("all_copied_and_busy", "copies all that is compared, and is busy for less time than a step", None),
)
CHEATS = (*VENDOR_CHEATS, *FRAMEWORK_CHEATS)


@dataclass(frozen=True)
class Finding:
    """What a result says of a cheat."""

    word: str  # a status, a verdict, or what the result has beside `valid` and `aligned`
    sentence: str  # that names the cheat; empty for none


def finding(cheat: Cheat, result: Mapping[str, Any]) -> Finding:
    """Return the first sentence of the result that names the cheat; none where the run is valid and aligned alone."""
    status, alignment = result["status"], result["alignment"]
    failure = f" ({status['failure']})" if status["failure"] else ""
    figures = {"energy": result["energy"]["joules"], "memory": result["memory"]["device_used_peak"]}
    sentences = [(f"{status['word']}{failure}", text) for text in (*status["reasons"], status["evidence"] or "")]
    if status["word"] == "valid":
        sentences = []
    sentences += [(alignment["verdict"], alignment["reason"])] if alignment["verdict"] != "aligned" else []
    missing = {name: figure["reason"] for name, figure in figures.items() if figure["value"] is None}
    named = [name for name, reason in missing.items() if cheat.tells and re.search(cheat.tells, reason)]
    sentences += [(f"no {' and no '.join(named)}", missing[name]) for name in named]
    sentences += [("a warning", text) for text in result["warnings"]]
    sentences += [("a doubtful peak", row["peak_source"] or row["reason"] or "") for row in result["utilisation"]]
    matching = (Finding(word, text) for word, text in sentences if cheat.tells and re.search(cheat.tells, text))
    return next(matching, Finding("valid, aligned", ""))
