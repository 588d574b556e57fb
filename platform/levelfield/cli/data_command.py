"""`data`: prepares a corpus from text, or checks one."""

from __future__ import annotations

import argparse

from levelfield.cli.terminal import Terminal
from levelfield.corpus import CorpusFacts, check, prepare
from levelfield.report.words import wrapped

_CUT = (
    "long documents were cut in {} place(s), where this tokenizer gives other tokens for a part of a text than for the "
    "whole text"
)


def execute(options: argparse.Namespace) -> int:
    terminal = Terminal(quiet=False)
    if options.action == "check":
        with terminal.bytes_progress(f"checking {options.prefix}") as progress:
            return _say(check(options.prefix, progress=progress))
    with terminal.bytes_progress("preparing") as progress:
        facts = prepare(
            options.input,
            options.tokenizer,
            options.output,
            suffixes=options.suffix,
            end_token=options.end_token,
            force=options.force,
            progress=progress,
            field=options.field,
        )
    if facts.prepared and facts.prepared.cuts:
        print(wrapped(_CUT.format(facts.prepared.cuts), 0))
    return _say(facts)


def _say(facts: CorpusFacts) -> int:
    print(f"{facts.prefix}: {facts.kind}, {facts.tokens:,} tokens in {facts.documents:,} documents")
    print(f"token type {facts.dtype}, largest token {facts.max_token}")
    print(f"digest {facts.digest}")
    return 0
