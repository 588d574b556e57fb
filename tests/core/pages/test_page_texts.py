"""The texts of the pages: both languages have the same, every one is used, and every named one is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from levelfield.compare.comparability import CAUTION_REASONS
from levelfield.compare.ranking import TRUST_PARTS, metrics
from levelfield.compare.ratios import Standing
from levelfield.pages import case_view
from levelfield.pages.first_view import TRUST_CAUTIONS
from levelfield.pages.page_rendering import HTML_LANGUAGES, LANGUAGES, script_texts, text_table, translate
from levelfield.series.findings import FINDING_WORDS
from levelfield.specs.record import EventKind, EvidenceWord, Purpose
from levelfield.specs.result import DISTURBED, StatusWord
from levelfield.specs.run_figures import GATED_FIGURES
from levelfield.specs.step_parts import PARTS as STEP_PARTS

PAGES = Path(__file__).resolve().parents[3] / "platform/levelfield/pages"
TEMPLATES = "".join(path.read_text() for path in (PAGES / "templates").glob("*.j2"))
SCRIPTS = "".join(path.read_text() for path in (PAGES / "assets").glob("*.js"))
MODULES = "".join(path.read_text() for path in PAGES.glob("*.py"))
RANKED = (*(metric.name for metric in metrics()), "cost")
# Keys that are put together from a part and a name that is not known before.
FAMILIES = {
    "word.": (*FINDING_WORDS, *get_args(StatusWord), DISTURBED, "reported"),
    "means.": FINDING_WORDS,
    "todo.": FINDING_WORDS,
    "js.event.": get_args(EventKind),
    "js.gated.": GATED_FIGURES,
    "js.purpose.": get_args(Purpose),
    "trust.": TRUST_PARTS,
    "part.": case_view.MEMORY_PARTS,
    "lacks.": TRUST_PARTS,
    "caution.": sorted(set(CAUTION_REASONS) - set(TRUST_CAUTIONS)),
    "answer.": (*RANKED, "noise", "inconclusive"),
    "by.": RANKED,
    "is.": [f"{name}.{word}" for name in RANKED for word in ("higher", "lower")],
    "standing.": get_args(Standing),
    "clear.": sorted(set(CAUTION_REASONS) - set(TRUST_CAUTIONS)),
    "figure.": ("tokens", "mfu", "memory", "energy", "loss", "cost"),
    "unit.": ("tokens", "mfu", "memory", "energy", "loss", "cost"),
    "js.evidence.": get_args(EvidenceWord),
    "js.memory.": ("device_used", "machine", "reserved", "allocated", "process", "capacity"),
    "js.trace.": ("power_watts", "utilisation", "memory_used_mebibytes", "temperature_celsius"),
    "js.": ("node_watts", "node_joules_per_token", "other_joules_per_token"),  # of a loop
    "js.part.": STEP_PARTS,
    "js.by.": ("chip", "framework", "layout"),
}
GUIDE = ("figures", "rule", "segments", "marks", "axes", "compare", "evidence", "keys")


def placeholders(value: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", value))


def scripted(key: str) -> str:
    """The key in the table of what a script calls by `key`."""
    return key if key.startswith(("word.", "figure.", "unit.")) else f"js.{key}"


def used() -> set[str]:
    """Every key that a template or a script names."""
    keys = set(re.findall(r"\bt\('([\w.-]+)'", TEMPLATES))
    keys |= set(re.findall(r'\b(?:say\(|translate\(language, )"([\w.-]+)"', MODULES))
    keys |= {scripted(key) for key in re.findall(r"\bt\(\"([\w.-]+)\"", SCRIPTS)}
    keys |= {
        f"js.{a}"
        for pair in re.findall(r'\bt\([^()"]*(?:\([^()]*\))?[^()"]*\? "([\w-]+)" : "([\w-]+)"', SCRIPTS)
        for a in pair
    }
    keys |= {f"js.{key}" for key in re.findall(r'section\(place, "([\w-]+)"\)', SCRIPTS)}
    keys |= {f"guide.{name}{end}" for name in GUIDE for end in ("", "-text")}
    keys |= {f"nav.{name}" for name in ("index", "nights", "nodes", "published", "guide")}
    keys = {key for key in keys if not key.endswith(".")}  # the beginning of a family
    return keys | {f"{family}{name}" for family, names in FAMILIES.items() for name in names}


def test_the_languages_have_the_same_texts() -> None:
    english, chinese = text_table("en"), text_table("zh")
    assert set(english) == set(chinese) and len(english) > 200
    for key, value in english.items():
        assert placeholders(value) == placeholders(chinese[key]), key
        assert value.strip() and chinese[key].strip(), key


def test_a_text_that_is_named_is_there() -> None:
    assert sorted(used() - set(text_table("en"))) == []


def test_a_text_that_is_there_is_named() -> None:
    assert sorted(set(text_table("en")) - used()) == []


def test_chinese_texts_are_chinese() -> None:
    same = {key for key, value in text_table("zh").items() if not re.search(r"[\u4e00-\u9fff]", value)}
    assert same == {"unit.mfu", "unit.memory", "difference"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_scripts_get_their_texts_and_no_others(language: str) -> None:
    script = script_texts(language)
    assert script["filter"] and script["word.regression"] and "no-night" not in script
    assert HTML_LANGUAGES[language].startswith(language)


def test_a_value_is_filled_in_once() -> None:
    """A value that looks like a place for another one is a value."""
    assert translate("en", "missing-caption", night="{night}{}").count("{night}{}") == 1


def test_no_template_switches_the_escaping_off() -> None:
    templates = TEMPLATES.replace(
        "<style>{{ style }}</style>", ""
    )  # of a comparison, whose policy names it by a digest
    assert not re.search(r"\|\s*safe|autoescape|Markup|<style|\sstyle=|\son\w+=|<script>", templates)


def test_no_script_takes_html() -> None:
    scripts = "".join(p.read_text() for p in (PAGES / "assets").glob("*.js"))
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setTimeout\(\"", scripts
    )
