"""`data` (machines and environments): prepare or check a dataset
`data prepare`: convert text files to Megatron's indexed .bin/.idx
`data check`: read a whole dataset; print its size and digest
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.terminal import Terminal
from levelfield.report.words import wrapped

if TYPE_CHECKING:
    from levelfield.corpus.facts import CorpusFacts

_DATA_HELP = """\
Prepare a dataset from text, or check one.

examples:
  run_benchmarks.py data prepare --input DIR --tokenizer bytes --output PREFIX
  run_benchmarks.py data check PREFIX
"""
_PREPARE_HELP = """\
Convert text files to Megatron's indexed format: PREFIX.bin and PREFIX.idx.
Each file is a document, or with --field each line of it.

examples:
  run_benchmarks.py data prepare --input DIR --tokenizer bytes --output PREFIX
  run_benchmarks.py data prepare --input enwiki --field text \\
      --tokenizer tokenizer.json --output PREFIX
  run_benchmarks.py data prepare --input a.txt --tokenizer tokenizer.json \\
      --end-token "<|endoftext|>" --output PREFIX
  run_benchmarks.py data prepare --input a.txt --tokenizer tokenizer.model \\
      --output PREFIX
"""
_CHECK_HELP = """\
Read a whole dataset and print its format, size in tokens and digest.

example:
  run_benchmarks.py data check PREFIX
"""

_CUTS_NOTICE = (
    "long documents were cut in {} place(s), where this tokenizer gives other tokens for a part of a text than for the "
    "whole text"
)


def _check(options: argparse.Namespace) -> int:
    _print_facts(Terminal().check_corpus(options.prefix))
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from levelfield.corpus.preparation import prepare_corpus

    with Terminal().bytes_progress("preparing") as progress:
        facts = prepare_corpus(
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
        print(wrapped(_CUTS_NOTICE.format(facts.prepared.cuts), 0))
    _print_facts(facts)
    return 0


def _print_facts(facts: CorpusFacts) -> None:
    print(f"{facts.prefix}: {facts.kind}, {facts.tokens:,} tokens in {facts.documents:,} documents")
    print(f"token type {facts.dtype}, largest token {facts.max_token}")
    print(f"digest {facts.digest}")


def _add_prepare_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--input", type=Path, action="append", required=True, metavar="FILE|DIR", help="text; may be repeated")
    option(
        "--tokenizer",
        required=True,
        metavar="bytes|FILE",
        help="bytes: each byte is a token; a Hugging Face tokenizer.json; or a SentencePiece tokenizer.model",
    )
    option("--output", type=Path, required=True, metavar="PREFIX", help="write PREFIX.bin and PREFIX.idx")
    option("--suffix", action="append", metavar=".txt", help="read only files of DIR with this suffix; may be repeated")
    option(
        "--field", metavar="NAME", help="the files are JSON lines, with a document in this field (wikiextractor: text)"
    )
    option("--end-token", metavar="TEXT", help="the tokenizer's end-of-document token")
    option("--force", action="store_true", help="replace an existing dataset")


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", help="the path of the dataset without .bin/.idx or _ids.npy")


COMMANDS = {
    "data": Command(_DATA_HELP),
    "data prepare": Command(_PREPARE_HELP, _add_prepare_options, _prepare),
    "data check": Command(_CHECK_HELP, _add_check_options, _check),
}
