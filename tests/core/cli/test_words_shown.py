"""The words of every `--help`: those of the field, within the width of a terminal."""

from __future__ import annotations

import re

import pytest
from levelfield.cli.command_line import declared_commands, parse_command_line
from levelfield.report.words import WIDTH

# What a stranger stumbled over, with the term of the field. Names of commands, options and stored values may have them.
HOME_MADE = {
    "suspicion": "candidate regression", "corpus": "dataset", "corpora": "datasets", "processors?": "CPU",
    "makers?": "vendor", "mixtures?": "MoE", "chunks?": "virtual stage", "figures?": "metric", "seal(ed)?": "checksums",
    "certificates?": "fp32 equivalence check", "rehears(ed|al|als|e)": "simulated", "matrix products?": "matmul",
    "accepted levels?": "baseline", "dossiers?": "acceptance report", "null pairs?": "A/A test", "told": "shown",
    "in turns": "interleaved", "mends?": "fix", "well": "passed",
}  # fmt: skip


def help_of(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit):
        parse_command_line([*words, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [(), *sorted(declared_commands())], ids=" ".join)
def test_a_help_has_the_words_of_the_field_and_fits_a_terminal(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(words, monkeypatch, capsys)
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    shown = re.sub(r"--[\w-]+|`[^`]*`|^ .*run_benchmarks\.py .*$", "", text, flags=re.MULTILINE)
    found = {word: better for word, better in HOME_MADE.items() if re.search(rf"(?i)\b{word}\b", shown)}
    assert found == {}
