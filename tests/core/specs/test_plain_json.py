"""Fast JSON reads as json does or not at all: what another reader understands differently is never plain."""

from __future__ import annotations

import json
import math
import random
import struct

import pytest
from levelfield.rundir.event_lines import parse_object
from levelfield.specs.bounded_reading import MAX_PLAIN_LEVELS, plain_json

PLAIN = [
    b'{"a": 1, "b": [1.5, -0.0, 1e-5, null, true, "x:y"], "c": {"d:e": ":"}}',
    b' {"a" : 1}\n',
    b"[]",
    b'"' + "中文 ☃".encode() + b'"',
    b'{"path": "a\\/b \\"quoted\\" \\n"}',
    b"18446744073709551616",
    b"[" * (MAX_PLAIN_LEVELS - 1) + b"]" * (MAX_PLAIN_LEVELS - 1),
]
REFUSED = [
    b'{"a": 1, "a": 1}',
    b'{"a": {"b": 1, "b": 2}}',
    b'{"a" :1, "a":":"}',  # the second text has a colon of its own
    b'{"a": ":", "a": 1}',
    b'{"a": 1, "\\u0061": 1}',
    b'{"a": 1, "a": 1, "b": "\\u003a"}',  # an escape that would write the missing colon
    b"1e999",
    b"[-1e400]",
    b"NaN",
    b"-Infinity",
    b"1" * 26,
    b'["' + b"1" * 26 + b'"]',  # a text, which the slower reader takes
    b"[" * (MAX_PLAIN_LEVELS + 1) + b"]" * (MAX_PLAIN_LEVELS + 1),
    b"[" * 5000 + b"]" * 5000,
    b'{"x":' * (MAX_PLAIN_LEVELS + 1) + b"1" + b"}" * (MAX_PLAIN_LEVELS + 1),
    b'{"a": 1,}',
    b"{'a': 1}",
    b"01",
    b"1 2",
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\x01"',
    b'{"a": 1',
    b"",
]


@pytest.mark.parametrize("content", PLAIN)
def test_plain_json_is_what_json_reads(content: bytes) -> None:
    assert repr(plain_json(content)) == repr(json.loads(content))


@pytest.mark.parametrize("content", REFUSED)
def test_what_is_not_plain_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        plain_json(content)


def test_every_number_is_read_to_the_last_bit() -> None:
    generator = random.Random(7)
    finite = [value for (value,) in struct.iter_unpack("<d", generator.randbytes(80_000)) if math.isfinite(value)]
    whole = [generator.getrandbits(bits) for bits in range(1, 80)]
    text = json.dumps([finite, whole, [f"{value:.17e}" for value in finite]]).encode()
    assert plain_json(text) == json.loads(text)
    lines = [f"[{value!r}, {value:.25g}, {value:.3e}]".encode() for value in finite]
    assert [parse_object(b'{"a":' + line + b"}") for line in lines] == [{"a": json.loads(line)} for line in lines]


def test_a_raw_line_that_only_json_reads_is_still_an_event() -> None:
    assert parse_object(b'{"a": "\xed\xa0\x80"}'.decode("utf-8", "surrogatepass")) == {"a": "\ud800"}
    assert math.isnan(parse_object(b'{"a": NaN}')["a"])
    assert parse_object(b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}")
    with pytest.raises(ValueError):
        parse_object(b'{"a": ' + b"[" * 9000 + b"]" * 9000 + b"}")
