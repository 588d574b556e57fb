"""Plugins that cheat, each in a run of its own: what tells it is in the result, and an honest run has nothing of it."""

from __future__ import annotations

import json
import re

import pytest
from cheating.cheat import CHEATS, Cheat, finding
from cheating.cheated_runs import HONEST, HONEST_ON_CHIP, CheatedRuns
from cheats import BEGIN, DATA, PAGE, section
from power import documented_between

NAMES = [cheat.name for cheat in CHEATS]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> CheatedRuns:
    return CheatedRuns(tmp_path_factory.mktemp("cheats"))


@pytest.mark.thorough  # test_doubtful_facts.py has what tells them of figures, test_runner.py a whole run's slow clock
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_each_cheat_is_told_or_the_docs_say_that_it_remains(runs: CheatedRuns, cheat: Cheat) -> None:
    result = runs.result(cheat)
    told = finding(cheat, result)
    assert bool(told.sentence) is (cheat.tells is not None), (result["status"], result["warnings"])


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
