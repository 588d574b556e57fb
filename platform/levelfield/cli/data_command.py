"""`data`: prepares a corpus from text, or checks one."""

from __future__ import annotations

import argparse

from levelfield.cli.terminal import Terminal
from levelfield.corpus import CorpusFacts, check, prepare


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
        )
    return _say(facts)


def _say(facts: CorpusFacts) -> int:
    print(f"{facts.prefix}: {facts.kind}, {facts.tokens:,} tokens in {facts.documents:,} documents")
    print(f"token type {facts.dtype}, largest token {facts.max_token}")
    print(f"digest {facts.digest}")
    return 0
