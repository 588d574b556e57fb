"""Checks of devices and samples, with the author's recordings and with damaged copies of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from levelfield.contracts.readings import whole_devices
from levelfield.contracts.tool_records import DUPLICATE_RECORD, parse_output
from levelfield.contracts.vendor import Device, DeviceList
from levelfield.testing import damage
from levelfield.testing.damage import NumberPlace
from levelfield.testing.findings import Fails, NotApplicable
from levelfield.testing.recordings import (
    Recording,
    ValueKey,
    find_unexplained_null,
    find_wrong_value,
    read_values,
    unread_reason,
)
from levelfield.testing.subject import VendorSubject
from levelfield.testing.tool_checks import check_problem

COMPARE_ADVICE = "compare vendor.yaml with the recording"
UNIT_ADVICE = "put number and unit into the group or column, and write the unit in `printed`"
STRICTER_ADVICE = "make the pattern stricter: anchors, `printed`, `matching`, `columns`"

Quantity = tuple[Recording, NumberPlace, ValueKey]  # a number, and the only value that depends on it


@dataclass(frozen=True)
class UndamagedValues:
    """The values of the undamaged recordings, with which every damaged copy is compared."""

    devices: tuple[Device, ...]
    values: dict[ValueKey, Any]


def read_undamaged_values(subject: VendorSubject) -> UndamagedValues:
    """Return the undamaged values. Raises Fails for a device with two records: a copy that lacks one shows more."""
    devices = subject.recorded_devices()
    _check_repeats(subject)
    return UndamagedValues(tuple(devices), read_values(subject.replayed_adapter(subject.outputs), devices))


def _check_repeats(subject: VendorSubject) -> None:
    for recording in subject.recordings:
        skipped_reasons = parse_output(recording.tool, recording.text).skipped_reasons if recording.tool else ()
        if repeated_record := next((note for note in skipped_reasons if note.startswith(DUPLICATE_RECORD)), None):
            raise Fails(
                f"{recording.path.name}: {repeated_record}; none of them is read",
                "one device has one record: compare the places of index and identity, or choose the records more "
                "strictly by `records`, `matching` or the first pattern",
            )


def values_after_damage(
    subject: VendorSubject, undamaged: UndamagedValues, recording: Recording, text: str | bytes
) -> dict[ValueKey, Any]:
    """Return the outcome when one of the tools prints another text."""
    content = text if isinstance(text, bytes) else text.encode()
    return read_values(subject.replayed_adapter({**subject.outputs, recording.argv: content}), undamaged.devices)


def check_devices(subject: VendorSubject) -> str:
    """Check that the recordings show devices of known chips."""
    devices = subject.recorded_devices()
    if not devices:
        unread = ((r.path.name, unread_reason(r.role, r.tool, r.text)) for r in subject.recordings if r.tool)
        reason = next((f": recorded/{name}: {reason}" for name, reason in unread if reason), "")
        raise Fails(f"found no device in the recordings{reason}", COMPARE_ADVICE)
    unknown = next((d for d in devices if d.chip is None and d.description != f"{subject.name} device {d.index}"), None)
    if unknown:
        ends = ", ".join(f"'{end}'" for chip in subject.spec.chips for end in chip.match) or "none"
        raise Fails(
            f"the tool prints '{unknown.description}', which ends with no chip's match: {ends}",
            "add it to a chip's match",
        )
    _check_repeats(subject)
    if len(whole := whole_devices(subject.spec, DeviceList(devices))) < len(devices):
        raise Fails(
            str(whole.problem), "record cards that are whole, or correct the chip's compute_units or memory_bytes"
        )
    names = sorted({d.chip or "a chip without a name" for d in devices})
    return f"{len(devices)} device(s): {', '.join(names)}"


def check_never_wrong(
    subject: VendorSubject, make_copies: Callable[[Recording], Iterable[str]], damage_words: str
) -> str:
    """Check that no damaged copy of a recording gives a value that differs from those of the recording itself."""
    undamaged, count = read_undamaged_values(subject), 0
    for recording in subject.required_recordings():
        for text in make_copies(recording):
            count += 1
            if error := find_wrong_value(values_after_damage(subject, undamaged, recording, text), undamaged.values):
                raise Fails(f"{recording.path.name} {damage_words}: {error}", STRICTER_ADVICE)
    if not count:
        raise NotApplicable("found no recording that this check can change")
    return f"{count} copies {damage_words}: no wrong value"


def find_quantities(subject: VendorSubject) -> tuple[UndamagedValues, list[Quantity]]:
    """Return the undamaged values, and the numbers of the recordings on which exactly one value depends.

    Each number is changed once to see that. Raises Fails when the recordings hold no quantity.
    """
    if "quantities" not in subject.shared:
        undamaged, numbers = read_undamaged_values(subject), list[Quantity]()
        for recording in subject.required_recordings():
            for number in damage.find_numbers(recording.text):
                nudged = values_after_damage(subject, undamaged, recording, damage.change_digit(recording.text, number))
                changed = [key for key in {*undamaged.values, *nudged} if undamaged.values.get(key) != nudged.get(key)]
                if len(changed) == 1 and changed[0][1] in damage.IMPOSSIBLE_UNITS:
                    numbers.append((recording, number._replace(field=changed[0][1]), changed[0]))
        subject.shared["quantities"] = (undamaged, numbers)
    undamaged, numbers = cast(tuple[UndamagedValues, list[Quantity]], subject.shared["quantities"])
    if not numbers:
        raise Fails("found no number in the recordings that gives a value", COMPARE_ADVICE)
    return undamaged, numbers


def check_null_values(
    subject: VendorSubject,
    damage_words: str,
    make_damaged: Callable[[str, NumberPlace], str],
    selected: Sequence[Quantity] | None = None,
    advice: str = STRICTER_ADVICE,
) -> str:
    """Check that each damaged quantity (all, or `selected`) is null, and that no other value is wrong."""
    undamaged, numbers = find_quantities(subject)
    for recording, number, (index, field) in numbers if selected is None else selected:
        text = make_damaged(recording.text, number)
        values = values_after_damage(subject, undamaged, recording, text)
        where = f"{recording.path.name} {damage_words}"
        line = text[text.rfind("\n", 0, number.start) + 1 :].partition("\n")[0].strip()[:50]
        if (index, field) in values:
            raise Fails(f"{where}: device {index}: {field} is {values[index, field]} for '{line}'", advice)
        if error := find_wrong_value(values, undamaged.values):
            raise Fails(f"{where}: {error} for '{line}'", advice)
    return f"{len(numbers)} number(s) {damage_words}: each null"


def check_other_units(subject: VendorSubject) -> str:
    """Check copies with another unit, and copies without a unit where the tool always prints one."""
    numbers = find_quantities(subject)[1]
    without_unit = {(recording.role, key[1]) for recording, number, key in numbers if number.unit is None}
    always_with_unit = [item for item in numbers if (item[0].role, item[2][1]) not in without_unit]
    check_null_values(subject, "without its unit", damage.remove_unit, always_with_unit, UNIT_ADVICE)
    return check_null_values(subject, "in another unit", damage.replace_unit)


def check_extra_devices(subject: VendorSubject) -> str:
    """Check samples of some devices while the tool shows more, and of a device that the tool does not show."""
    undamaged = read_undamaged_values(subject)
    for device in undamaged.devices:
        readings = read_values(subject.replayed_adapter(subject.outputs), [device])
        values = {key: value for key, value in readings.items() if key[0] == device.index}
        lost = next((f"no {key[1]}" for key in undamaged.values if key[0] == device.index and key not in values), None)
        if error := find_wrong_value(values, undamaged.values) or lost:
            raise Fails(f"device {device.index} alone of {len(undamaged.devices)}: {error}", "pick records by index")
    absent = Device(max((d.index for d in undamaged.devices), default=0) + 90, None, "", None)
    (sample,) = subject.replayed_adapter(subject.outputs).sample([absent])
    if sample.index != absent.index or any(
        getattr(sample, field, None) is not None for field in damage.IMPOSSIBLE_UNITS
    ):
        raise Fails(f"device {absent.index}, which the tool does not show, has values", "pick records by index")
    if blank := find_unexplained_null([sample]):
        raise Fails(blank, "give a reason in Sample.reasons")
    return f"{len(undamaged.devices)} device(s) one by one; an absent one is null"


def check_no_text(subject: VendorSubject) -> str:
    """Check that empty output, blank lines and bytes that are not text give no devices, and nulls with reasons.

    The list of devices must say why it is empty.
    """
    undamaged = read_undamaged_values(subject)
    for recording in subject.required_recordings():
        for content in (b"", b"\n\n\n", b"\xff\xfe" + recording.content, recording.content.replace(b"\n", b"\xff\n")):
            if error := find_wrong_value(values_after_damage(subject, undamaged, recording, content), undamaged.values):
                raise Fails(f"{recording.path.name}, empty or not UTF-8: {error}", "treat such output as no output")
    for content in (b"", b"unexpected state, contact your vendor\n\x00\x01\n"):
        adapter = subject.replayed_adapter({recording.argv: content for recording in subject.recordings})
        check_problem(adapter.devices(), f"prints {content[:24]!r}", is_installed=True)
    adapter = subject.replayed_adapter({recording.argv: b"" for recording in subject.recordings})
    if blank := find_unexplained_null(list(adapter.sample(undamaged.devices))):
        raise Fails(f"the tool prints nothing: {blank}", "give a reason in Sample.reasons")
    return "empty and not UTF-8: no wrong value"
