"""Plugins that cheat, each in a run of its own: what tells it is in the result, and an honest run has nothing of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cheating.cheat import CHEATS, Cheat, finding
from cheating.cheated_runs import HONEST, HONEST_ON_CHIP, CheatedRuns
from cheats import BEGIN, DATA, PAGE, section
from power import documented_between

SAMPLE = [cheat for cheat in CHEATS if cheat.name == "even_steps"]  # test_runner.py has a slow clock
NAMES = [cheat.name for cheat in CHEATS]


class RunsWithoutReference(CheatedRuns):
    """For cheats that a result tells without a reference, which takes two honest runs."""

    def _command(self, cheat: Cheat, *arguments: str) -> str:
        return '[{"run_id": ""}]' if cheat is HONEST else super()._command(cheat, *arguments)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> CheatedRuns:
    return CheatedRuns(tmp_path_factory.mktemp("cheats"))


def assert_told(runs: CheatedRuns, cheat: Cheat) -> None:
    result = runs.result(cheat)
    told = finding(cheat, result)
    assert bool(told.sentence) is (cheat.tells is not None), (result["status"], result["warnings"])


@pytest.mark.parametrize("cheat", SAMPLE, ids=lambda cheat: cheat.name)
def test_a_cheat_is_told(tmp_path: Path, cheat: Cheat) -> None:
    assert_told(RunsWithoutReference(tmp_path), cheat)


@pytest.mark.thorough
@pytest.mark.parametrize("cheat", [cheat for cheat in CHEATS if cheat not in SAMPLE], ids=lambda cheat: cheat.name)
def test_each_cheat_is_told_or_the_docs_say_that_it_remains(runs: CheatedRuns, cheat: Cheat) -> None:
    assert_told(runs, cheat)


@pytest.mark.thorough
@pytest.mark.parametrize("honest", [HONEST, HONEST_ON_CHIP], ids=["processors", "a chip"])
def test_an_honest_run_has_none_of_what_tells_a_cheat(runs: CheatedRuns, honest: Cheat) -> None:
    result = runs.result(honest)
    assert (result["status"]["word"], result["alignment"]["verdict"]) == ("valid", "aligned")
    unknown = "neither power nor an energy counter"  # processors that show no energy
    sentences = [*result["warnings"], *(row["peak_source"] or "" for row in result["utilisation"])]
    sentences += [reason for reason in (result["energy"]["joules"]["reason"],) if reason and unknown not in reason]
    assert [s for s in sentences if any(c.tells and re.search(c.tells, s) for c in CHEATS)] == []


def test_the_page_has_each_cheat_and_names_those_that_remain() -> None:
    data, page = json.loads(DATA.read_text()), PAGE.read_text()
    rows = data["cheats"]
    assert [row["cheat"] for row in rows] == NAMES
    assert documented_between(BEGIN, page, section(**data)) == page
    untold = [row["cheat"] for row in rows if row["word"] == "valid, aligned"]
    assert untold == [cheat.name for cheat in CHEATS if cheat.tells is None] and len(untold) <= 2
