"""Paths, hosts and users leave a text; what a reader needs stays."""

from __future__ import annotations

import pytest
from levelfield.store.run_record import TextRedactor
from pydantic import JsonValue

PRIVATE = TextRedactor(
    ["gpu17.lab.example", "gpu17", "vm"], ["torch", "cpu"], ["/home/annika/levelfield", "/Users/bo/x"]
)


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("File '/home/annika/a/b/train.py', line 3", "File '(path)/train.py', line 3"),
        ("/home/annika", "(path)"),
        ("/home/annika.dir", "(path)"),
        ("~/private/chips.yaml and ~bob", "(path)/chips.yaml and ~bob"),
        ("PATH=/opt/x/bin:/data/y/bin", "PATH=(path):(path)"),
        ("file:///home/annika/x at host:/export/x", "(path) at host:(path)"),
        ("(/scratch/x/y.tar.gz)", "((path)/y.tar.gz)"),
        ("/usr/lib/libc.so.6 of /proc/self/maps", "/usr/lib/libc.so.6 of /proc/self/maps"),
        ("palm/1, 6n/1, 3/4 of the time, tokens/s/device", "palm/1, 6n/1, 3/4 of the time, tokens/s/device"),
        ("https://pytorch.org/docs/stable", "https://pytorch.org/docs/stable"),
        ("gpu17: killed; gpu17.lab.example; gpu170; my-gpu17", "(host): killed; (host); gpu170; my-gpu17"),
        ("annika's job, annikas job, bo and vm", "(user)'s job, annikas job, bo and vm"),
        ("torch on cpu", "torch on cpu"),
    ],
)
def test_a_text_keeps_its_meaning(text: str, public: str) -> None:
    assert PRIVATE.redact_text(text) == public


def test_every_text_of_a_value_is_taken() -> None:
    value: JsonValue = {"a": ["/home/annika/x", {"b": "gpu17"}], "c": 1.5, "d": None, "e": True}
    assert PRIVATE.redact_value(value) == {"a": ["(path)", {"b": "(host)"}], "c": 1.5, "d": None, "e": True}


def test_public_words_and_nobody_are_no_names() -> None:
    private = TextRedactor(["torch", "localhost"], ["torch"], [f"/home/{name}/x" for name in ("root", "user")])
    text = "torch on localhost as root or user"
    assert private.redact_text(text) == text
