"""`vendor record`: runs the vendor's tools on this machine and stores their output, on request without identities."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path

from levelfield.contracts.command import CommandOutput, ask
from levelfield.contracts.tool_records import find_matches, parse_output
from levelfield.contracts.vendor import Device, Vendor, replayable_commands
from levelfield.errors import RunFailed, UsageError
from levelfield.node.file_sizes import MAX_BYTES_BY_KIND
from levelfield.rundir.folder_descriptor import FolderDescriptor
from levelfield.rundir.seal import UUID_PATTERN
from levelfield.specs.tool import NodeCommand, Tool
from levelfield.testing.file_checks import PLACEHOLDER
from levelfield.testing.recordings import ORIGINS_FILE, declared_commands, recording_file_name, unread_reason
from levelfield.testing.subject import VendorSubject

ORIGINS_HEADING = "# Where the recorded output comes from\n"

_MAC_ADDRESS = re.compile(r"\b[0-9a-fA-F]{2}(?:([:-])[0-9a-fA-F]{2})(?:\1[0-9a-fA-F]{2}){4}\b")
# What --redact replaces, in the words of its help and of docs/writing-a-vendor.md, by the label before the value: in
# `Serial Number : X`, in `"serial_no": "X"`, in `<serial>X`, or as the heading of a column.
LABELS = {
    "serial numbers": r"serial(?:[ _-]?(?:no|num(?:ber)?))?|sn|s/n",
    "UUIDs": r"uuid|guid",
    "MAC addresses": r"mac(?:[ _-]?addr(?:ess)?)?",
    "board ids": r"board[ _-]?id",
    "asset tags": r"asset[ _-]?tag",
    "host names": r"host[ _-]?name",
    "IP addresses": r"ip(?:v[46])?(?:[ _-]?addr(?:ess)?)?",
}
_LABEL = "|".join(LABELS.values())
_IDENTITY = r"[A-Za-z0-9][A-Za-z0-9:._-]{3,}"
_LABELLED = re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{_LABEL})\b\.?[\"']?\s*[:=>]+\s*[\"']?({_IDENTITY})")
_LABEL_HEADING = re.compile(rf"(?i)(?:\w+[ _.-])*(?:{_LABEL})\.?")
# `S/N X1`: a blank alone separates a label only from a word with a digit, or from a host's name with a dot.
_NUMBERED = "|".join(LABELS[name] for name in ("serial numbers", "board ids", "asset tags"))
_LABELLED_BY_BLANK = re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{_NUMBERED})[.#]?[ \t]+(?=[A-Za-z:._-]*[0-9])({_IDENTITY})")
_HOST_LABEL = rf"(?:{LABELS['host names']}|host)"
_HOST_NAME = r"(?=[0-9_.-]*[A-Za-z])[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9]))+"  # of two characters or more
_HOST_LABELLED = re.compile(
    rf"(?i)(?<![A-Za-z0-9]){_HOST_LABEL}\b\.?[\"']?"
    rf"(?:[ \t]*[:=>]+[ \t]*[\"']?|[ \t]+(?=[A-Za-z][A-Za-z_-]*(?:[0-9]|\.\w)))({_HOST_NAME})"
)
_HOST_HEADING = re.compile(rf"(?i)(?:\w+[ _.-])*{_HOST_LABEL}")
_IP_ADDRESS = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)(?:\d{1,3}\.){3}\d{1,3}(?!\w|[.]\w|-[A-Za-z])|(?<![\w:.])[0-9a-fA-F:]{3,39}(?![\w:]|\.\w)"
)
# A version may have the form of an address: `Driver Version : 3.1.0.14`, and a column `driver_version`.
_VERSION_WORD = (
    r"(?:version|(?<![A-Za-z])(?:ver|driver|firmware|fw|bios|release|rev|revision|sdk|toolkit|runtime|build))"
)
_VERSION_LABEL = re.compile(rf"(?i){_VERSION_WORD}\W*$")
_VERSION_HEADING = re.compile(rf"(?i).*{_VERSION_WORD}\W*")
_NOT_A_HOST_NAME = re.compile("(?i)none|null|na|unknown|localhost|yes|no|on|off|ok|up|down|true|false")
_SEPARATORS = (",", ";", "\t", "|")
_BUS_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_IDENTITY_PREFIX = re.compile(r"[A-Za-z]+[-_ ]|")


@dataclass(frozen=True)
class CapturedOutput:
    """The output of one tool for a recording."""

    role: str
    argv: tuple[str, ...]
    file: str
    answer: CommandOutput
    rule: Tool | str | None  # that reads it, or the pattern of the version in it
    required: bool  # there is no recording without it


def record_tools(vendor: Vendor, folder: Path, redact: bool, force: bool) -> list[str]:
    """Run each command of vendor.yaml or adapter.py, write recorded/, and return sentences about what was done.

    Raises UsageError for existing recordings without `force`. Raises RunFailed when a tool for devices or samples
    prints nothing or fails.
    """
    recorded = folder / "recorded"
    captured = _capture_outputs(vendor, folder, force)
    texts = {item.file: item.answer.text for item in captured if item.answer.text is not None}
    rules = {item.file: item.rule for item in captured if item.rule}
    stored = redact_texts(texts, rules) if redact else texts
    _write_recordings(recorded, vendor, captured, stored)
    notes = []
    for item in captured:
        if item.answer.text is None:
            notes.append(f"{item.role}: not recorded: {item.answer.reason}")
        else:
            lines = len(item.answer.text.splitlines())
            notes.append(f"{recorded / item.file}: {lines} line(s) of `{shlex.join(item.argv)}`")
    return [*notes, *_identity_notes(texts, rules, redact)]


def _capture_outputs(vendor: Vendor, folder: Path, force: bool) -> list[CapturedOutput]:
    """Return what the tools of vendor.yaml print, or those of adapter.py without any. Raises as record_tools."""
    recorded, declared = folder / "recorded", declared_commands(vendor.spec)
    has_tool = any(tool for _, tool in declared.values())
    adapter_commands: dict[str, NodeCommand] = {}
    if not has_tool and not vendor.spec.is_host:
        for command in replayable_commands(vendor).sampling_commands:
            role = f"tool.{Path(command.argv[0]).name}"
            file = next((path.name for path in recorded.glob(f"{role}.*")), f"{role}.txt")  # its ending is kept
            adapter_commands[file] = command
    if not adapter_commands and not has_tool:
        raise UsageError(f"{folder}: found no tool in vendor.yaml; add `monitor`, or record adapter.py's by hand")
    existing = [path for role in declared for path in sorted(recorded.glob(f"{role}.*"))]
    existing += [recorded / file for file in adapter_commands if (recorded / file).exists()]
    if existing and not force:
        raise UsageError(f"{existing[0]} exists; --force replaces it and its line in {ORIGINS_FILE}")
    captured = []
    for role, (argv, tool) in declared.items():
        source = tool or vendor.spec.software[role.removeprefix("software.")]
        rule = source if isinstance(source, Tool) else source.pattern
        answer = ask(argv, source.timeout_seconds)
        captured.append(CapturedOutput(role, argv, recording_file_name(role, tool), answer, rule, required=bool(tool)))
    for file, command in adapter_commands.items():
        answer = ask(command.argv, command.timeout_seconds)
        captured.append(CapturedOutput(Path(file).stem, command.argv, file, answer, None, required=True))
    for item in (item for item in captured if item.required):
        words = shlex.join(item.argv)
        if item.answer.text is None:
            raise RunFailed(
                f"failed (tool): {item.answer.reason}. Run this on a machine with the chip, its driver and the "
                f"vendor's tools on PATH, where `{words}` works within `timeout_seconds` of vendor.yaml"
            )
        if not item.answer.text.strip():
            raise RunFailed(f"failed (tool): `{words}` printed nothing; check the device and this user's rights")
    return captured


def unread_recordings(subject: VendorSubject) -> Iterator[str]:
    """Return a sentence about each recording in which the rules of vendor.yaml find no device."""
    for item in subject.recordings:
        with suppress(UnicodeDecodeError):
            if item.tool and item.content and (reason := unread_reason(item.role, item.tool, item.text)):
                begin = next((line for line in item.text.splitlines() if line.strip()), "").strip()[:80]
                yield f"{item.path.name}: found no device with the rules of vendor.yaml: {reason}; it begins '{begin}'"


def has_rules(vendor_yaml: Path) -> bool:
    """Return whether the author has written how the tools' output is read: no place to fill in is left there."""
    text = vendor_yaml.read_text(encoding="utf-8")
    return not any(PLACEHOLDER in part for part in re.findall(r"(?m)^(?:monitor|discovery):.*(?:\n(?:[ #].*)?)*", text))


def _identity_notes(texts: Mapping[str, str], rules: Mapping[str, Tool | str], redact: bool) -> Iterator[str]:
    """Return sentences about identities in the files, with their masks, and without the identities themselves."""
    if not redact:
        words = find_identities(texts, rules)
        for file in (file for file, text in texts.items() if any(word in text for word in words)):
            yield f"{file} holds identities of devices; --redact --force replaces them"
        return
    masks = identity_masks(texts, rules)
    for file, text in texts.items():
        if used := [mask for word, mask in masks.items() if word in text]:
            more = ", ..." if len(used) > 3 else ""
            identity = "identity" if len(used) == 1 else "identities"
            yield f"{file}: {len(used)} {identity} replaced, now {', '.join(used[:3])}{more}"
    if not masks:
        yield "--redact: found no serial number, UUID or name of this machine to replace"
    yield "PCI bus addresses are not secret and stay; read the files before you publish them"


def _write_recordings(folder: Path, vendor: Vendor, captured: list[CapturedOutput], texts: dict[str, str]) -> None:
    """Replace the recordings. Raises UsageError for a link or a folder among them, before anything is changed."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FolderDescriptor(folder.parent) as parent, parent.subfolder(folder.name, make=True) as recorded:
            old = [name for name in recorded.names() if any(fnmatchcase(name, f"{item.role}.*") for item in captured)]
            for name in (*old, ORIGINS_FILE):
                if (kind := recorded.kind(name)) not in (None, "a file"):
                    raise UsageError(f"{folder / name}: found {kind}, expected a recording; move it away")
            before = (
                recorded.read(ORIGINS_FILE, MAX_BYTES_BY_KIND["vendor"]).decode()
                if recorded.kind(ORIGINS_FILE)
                else ORIGINS_HEADING + "\n"
            )
            for name in old:
                recorded.remove(name)
            for name, text in texts.items():
                recorded.write_new(name, text.encode())
            recorded.replace(ORIGINS_FILE, _update_origins(before, vendor, captured, texts).encode())
    except OSError as error:
        message = f"{error.filename or folder} cannot be written: {error.strerror}"
        raise UsageError(f"{message}; copy the vendor's folder elsewhere") from None


def _update_origins(before: str, vendor: Vendor, captured: list[CapturedOutput], texts: dict[str, str]) -> str:
    """Return the text with one line for each recording. It replaces an earlier line about the same file."""
    names = "|".join(map(re.escape, texts))
    lines, is_replaced = list[str](), False
    for line in before.splitlines():
        is_replaced = bool(re.match(rf"- `({names})`", line)) or (is_replaced and line.startswith("  "))
        lines += [] if is_replaced else [line]
    lines = lines if not lines or lines[-1].startswith("- ") or not lines[-1].strip() else [*lines, ""]
    day = datetime.now(timezone.utc).date().isoformat()
    devices: Sequence[Device] = ()
    with suppress(Exception):  # an adapter may raise anything, and the recording is written in any case
        devices = vendor.devices()
    chips = f"{len(devices)} x {devices[0].description}" if devices else "no device that vendor.yaml recognises"
    software = "; ".join(f"{name} {version}" for name, version in vendor.software().items())
    machine = f"{day}, {platform.system()} {platform.machine()}, {chips}; {software}"
    for item in captured:
        if item.file in texts:
            ending = "; identities replaced" if texts[item.file] != item.answer.text else ""
            lines.append(f"- `{item.file}`: `{shlex.join(item.argv)}`, {machine}{ending}")
    return "\n".join(lines) + "\n"


def identity_masks(texts: Mapping[str, str], rules: Mapping[str, Tool | str]) -> dict[str, str]:
    """Return the mask of each identity. rules: of a file, its tool or the pattern of a version. Raises UsageError when
    two identities would get the same mask."""
    hosts = {word for text in texts.values() for word in _host_names(text)}
    masks = {word: _mask(word, number, word in hosts) for number, word in enumerate(find_identities(texts, rules), 1)}
    if len(set(masks.values())) < len(masks):
        raise UsageError("--redact: found identities too short for unique masks; record without it, and replace them")
    return masks


def redact_texts(texts: Mapping[str, str], rules: Mapping[str, Tool | str]) -> dict[str, str]:
    """Return the texts without identities, by file. Raises UsageError when other values would then be read."""
    masks = identity_masks(texts, rules)
    whole_word = "(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"  # a short word may be a part of many others
    longest_first = sorted(masks, key=len, reverse=True)
    words = (re.escape(word) if len(word) > 3 else whole_word.format(re.escape(word)) for word in longest_first)
    any_word = re.compile("|".join(words))  # all at once, so that no mask is replaced again
    masked_texts = {
        name: any_word.sub(lambda match: masks[match.group()], text) if masks else text for name, text in texts.items()
    }
    for name in texts:
        if _values_by_rule(rules.get(name), texts[name]) != _values_by_rule(rules.get(name), masked_texts[name]):
            raise UsageError(
                f"--redact: {name} gives other values without its identities; record without --redact, and replace "
                "them by hand"
            )
    return masked_texts


def find_identities(texts: Mapping[str, str], rules: Mapping[str, Tool | str]) -> tuple[str, ...]:
    """Return what LABELS name, UUIDs and addresses without a label, identities by vendor.yaml, and this machine's
    name. Bus addresses are not identities, because they are the same on every machine of a kind."""
    rule_values = str([_values_by_rule(rules.get(name), text) for name, text in texts.items()])
    words: list[str] = []
    for name, text in texts.items():
        rule = rules.get(name)
        words += [match.group() for pattern in (UUID_PATTERN, _MAC_ADDRESS) for match in pattern.finditer(text)]
        labelled = [*(match[1] for match in _LABELLED.finditer(text)), *_column_cells(_LABEL_HEADING, _IDENTITY, text)]
        words += [word for word in labelled if not UUID_PATTERN.search(word)]
        by_rule = (
            [r.word("identity") for r in parse_output(rule, text).records.values()] if isinstance(rule, Tool) else []
        )
        words += [
            word for word in by_rule if word and not _BUS_ADDRESS.fullmatch(word) and not UUID_PATTERN.search(word)
        ]
        # a value that the rules read is none by its form or by a label with a blank alone
        blank_labelled = [match[1] for match in _LABELLED_BY_BLANK.finditer(text) if not UUID_PATTERN.search(match[1])]
        words += [
            word
            for word in (*blank_labelled, *_ip_addresses(text), *_host_names(text))
            if not _stands_alone(word, rule_values)
        ]
        words += [platform.node()] if len(platform.node()) > 3 and platform.node() in text else []
    return tuple(dict.fromkeys(words))


def _host_names(text: str) -> Iterator[str]:
    """Return the names of hosts behind a label, and the first part of each where it stands alone."""
    for name in (
        *(match[1] for match in _HOST_LABELLED.finditer(text)),
        *_column_cells(_HOST_HEADING, _HOST_NAME, text),
    ):
        first = name.partition(".")[0]
        for word in {name, first} if _stands_alone(first, text) else {name}:
            if not _NOT_A_HOST_NAME.fullmatch(word):
                yield word


def _stands_alone(word: str, text: str) -> bool:
    """Return whether the text has the word, and not only within a longer one."""
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-]|\.\w)", text) is not None


def _ip_addresses(text: str) -> Iterator[str]:
    """Return the IP addresses by their form, but for those of every machine, and for versions of the same form."""
    versions = {*_column_cells(_VERSION_HEADING, r"[0-9.]+", text)}
    for match in _IP_ADDRESS.finditer(text):
        try:
            address = ip_address(match.group())
        except ValueError:
            continue
        is_everywhere = address.is_loopback or address.is_unspecified or address.is_reserved or address.is_multicast
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not is_everywhere and match.group() not in versions and not _VERSION_LABEL.search(before):
            yield match.group()


def _column_cells(label: re.Pattern[str], word: str, text: str) -> Iterator[str]:
    """Return the words of every column whose heading is a label, in a table of any separator."""
    lines = [line for line in text.splitlines() if line.strip()]
    for separator in _SEPARATORS:
        rows = [[cell.strip(" \"'") for cell in line.split(separator)] for line in lines]
        for number, heading in enumerate(rows[0] if rows else []):
            if len(rows[0]) > 1 and label.fullmatch(heading):
                cells = (row[number] for row in rows[1:] if len(row) == len(rows[0]))
                yield from (cell for cell in cells if re.fullmatch(word, cell))


def _mask(word: str, number: int, is_host: bool) -> str:
    """Return `number` in the form of the word: digits in the places of digits, a to f in those of letters.

    The prefix of a word like GPU-4711 stays, so that a pattern with the prefix still matches; that of a host does not.
    """
    prefix = None if is_host else _IDENTITY_PREFIX.match(word)
    masked: list[str] = []
    for char in reversed(word[prefix.end() if prefix else 0 :]):
        digits = "0123456789" if char.isdigit() else "abcdef" if char.islower() else "ABCDEF"
        if char.isalnum():
            number, digit = divmod(number, len(digits))
            char = digits[digit]
        masked.append(char)
    return (prefix.group() if prefix else "") + "".join(reversed(masked))


def _values_by_rule(rule: Tool | str | None, text: str) -> list[object]:
    """Return the values that a tool's rules, or a version's pattern, read from the text, without identities."""
    if isinstance(rule, Tool):
        names = [name for name in rule.fields if name != "identity"]
        records = parse_output(rule, text).records
        return [(index, [record.texts.values.get(name) for name in names]) for index, record in sorted(records.items())]
    try:
        match = next(find_matches(rule, text), None) if rule else None
    except ValueError:  # the pattern took too long
        return []
    return [match[1] if match.re.groups else match[0]] if match else []
