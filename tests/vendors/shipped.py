"""The recordings that the repository's vendors ship (vendors/<name>/recorded/), and what each of them says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from adapters import VENDORS, load_spec
from levelfield.contracts.command import CommandOutput
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import SAMPLED_FIELDS
from levelfield.contracts.vendor import Device, Sample

MIB = 2**20
DECLARED = ("amd", "ascend", "cambricon", "hygon", "iluvatar", "intel", "kunlunxin", "metax", "mthreads")
ALL = tuple(sorted((*DECLARED, "cpu", "nvidia")))
Values = tuple[float | None, ...]
# By index: power, energy, memory used, utilisation, temperature.
EXPECTED: dict[str, dict[int, Values]] = {
    "amd/monitor.json": {0: (146.0, 1532.25, 283 * MIB, 0.12, 41.0), 1: (151.0, 1533.5, 284 * MIB, 0.0, 42.0)},
    "ascend/monitor.txt": {0: (99.3, None, 3453 * MIB, 0.0, 50.0), 1: (97.2, None, 3454 * MIB, 0.0, 49.0)},
    "ascend/older-910a.txt": {0: (None, None, 861 * MIB, 0.0, 43.0)},
    "ascend/two-dies-a3.txt": {0: (163.6, None, 3180 * MIB, 0.0, 30.0), 1: (None, None, 2896 * MIB, 0.0, 30.0)},
    "cambricon/monitor.txt": {0: (106.0, None, 0, 0.0, 32.0), 1: (106.0, None, 0, 0.0, 39.0)},
    "hygon/monitor.txt": {0: (96.0, None, None, 0.0, 53.0), 1: (97.0, None, None, 0.05, 54.0)},
    "hygon/newer-hcu.txt": {0: (157.0, None, None, 0.0, 40.0), 1: (162.0, None, None, 0.0, 41.0)},
    "iluvatar/monitor.csv": {0: (50.0, None, 513 * MIB, 0.0, 26.0), 1: (51.0, None, 514 * MIB, 0.03, 27.0)},
    "intel/monitor.csv": {0: (226.0, None, 672 * MIB, 0.0, 36.0), 1: (230.0, None, 673 * MIB, 0.04, 39.0)},
    "kunlunxin/monitor.txt": {0: (93.0, None, 0, 0.0, 37.0), 1: (114.0, None, 28653 * MIB, 0.94, 40.0)},
    "metax/monitor.txt": {0: (29.0, None, 666 * MIB, 0.0, 37.0), 1: (33.0, None, 666 * MIB, 0.0, 37.0)},
    "metax/older-c500.txt": {0: (56.0, None, 914 * MIB, 0.0, 35.0)},
    "mthreads/monitor.json": {0: (96.66, None, 0, 0.0, 27.0), 1: (97.09, None, 0, 0.0, 26.0)},
    "mthreads/older-s3000.json": {0: (109.51, None, 1 * MIB, 0.0, 45.0), 1: (110.25, None, 2 * MIB, 0.07, 46.0)},
}  # fmt: skip
WHOLE = [name for name in EXPECTED if "/monitor." in name]


@cache
def text_of(recording: str) -> str:
    vendor, name = recording.split("/")
    return (VENDORS / vendor / "recorded" / name).read_text()


def adapter(recording: str, output: str | None = None) -> DeclaredVendor:
    """The vendor of a recording, whose monitor prints that, or `output`, and whose discovery what it has."""
    spec = load_spec(recording.split("/")[0])
    monitor = text_of(recording) if output is None else output
    others = {"discovery": spec.discovery and spec.discovery.tool, "numbering": spec.numbering and spec.numbering.tool}
    texts = {
        tool.command: next((VENDORS / spec.name / "recorded").glob(f"{role}.*")).read_text()
        for role, tool in others.items()
        if tool
    }

    def replay(argv: Sequence[str], timeout_seconds: float) -> CommandOutput:
        return CommandOutput(texts.get(tuple(argv), monitor))

    return DeclaredVendor(spec, replay)


def devices(recording: str) -> list[Device]:
    return list(adapter(recording).devices())


def samples(recording: str, output: str | None = None) -> Sequence[Sample]:
    return adapter(recording, output).sample(devices(recording))


def values(sample: Sample) -> Values:
    return tuple(getattr(sample, field) for field in SAMPLED_FIELDS)


def assert_nothing_wrong(recording: str, output: str) -> None:
    """Each value is the recorded one, or None with the reason."""
    for read, right in zip(samples(recording, output), samples(recording), strict=True):
        for field, value in zip(SAMPLED_FIELDS, values(read), strict=True):
            assert value is None or value == getattr(right, field)
            assert value is not None or read.reasons[field]
