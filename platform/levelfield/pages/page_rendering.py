"""Templates into HTML. Every value is escaped: autoescape is on for all templates, and none switches it off."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import levelfield
from levelfield.compare.ratios import Ratio
from levelfield.report import words
from levelfield.report.escapes import printable
from levelfield.report.sheets import Sheet
from levelfield.report.words import GIB, significant
from levelfield.series.findings import FINDING_WORDS
from levelfield.specs.run_figures import GATED_FIGURES, STORED_FIGURES
from levelfield.specs.short_names import short_digest

# No inline script or style, nothing from elsewhere. `file:` pages load their own folder as 'self'. A script makes the
# PNG of a chart from a picture of its own, at an address of `blob:`.
_SOURCES = "script-src 'self'; style-src 'self'; img-src 'self' blob:"
POLICY = f"default-src 'none'; {_SOURCES}; base-uri 'none'; form-action 'none'"
LANGUAGES = {"en": "English", "zh": "中文"}
HTML_LANGUAGES = {"en": "en", "zh": "zh-Hans"}
_SCRIPT_PREFIX = "js."  # keys of texts that scripts show begin with it
_TEXTS_FOLDER = Path(__file__).parent / "texts"
_STYLE_FILE = Path(__file__).parent / "assets" / "style.css"


def render_page(language: str, template: str, page: str, **values: Any) -> str:
    """Return the HTML of a page in one language. page: its file name, which is the same in every language."""
    return (
        _environment(language)
        .get_template(f"{template}.html.j2")
        .render(
            page=page,
            language=language,
            html_language=HTML_LANGUAGES[language],
            html_languages=HTML_LANGUAGES,
            others={other: name for other, name in LANGUAGES.items() if other != language},
            root="../" * folder_of(language).count("/"),
            **values,
        )
    )


def comparison_page(title: str, sheets: Iterable[Sheet], made_at: datetime) -> str:
    """Return the HTML of tables of `compare`: a file of its own, without a script, that makes no request.

    made_at: in UTC. Its policy allows nothing but its own style, by the digest of it.
    """
    style = _STYLE_FILE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return render_page(
        "en",
        "comparison",
        "comparison",
        title=title,
        sheets=list(sheets),
        style=Markup(style),  # the platform's own file, which the policy names by its digest
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        made=made_at.strftime("%Y-%m-%d %H:%M UTC"),
        version=levelfield.__version__,
    )


@cache  # templates are compiled once for a process, which takes longer than rendering some pages
def _environment(language: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("levelfield", "pages/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show_invisible,
    )
    environment.globals.update(
        t=partial(translate, language),
        figure_name=partial(figure_name, language),
        verdict=partial(verdict, language),
        basis=partial(basis, language),
        not_english=language != "en",
        policy=POLICY,
        words=FINDING_WORDS,
    )
    environment.filters.update(FILTERS)
    return environment


def folder_of(language: str) -> str:
    """Return the folder of a language's pages within the site. English is at the top."""
    return "" if language == "en" else f"{language}/"


def figure_name(language: str, gated: str | None) -> str:
    """Return the name of a gated figure. A name that is not known stays as it is."""
    return "–" if gated is None else GATED_FIGURES[gated].names[language].title if gated in GATED_FIGURES else gated


def _show_invisible(value: Any) -> Any:
    """Return a text with its invisible characters shown. A text that a template has escaped already is left alone."""
    return printable(value) if type(value) is str else value


def number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def signed_percent(value: float | None, digits: int = 1) -> str:
    """Return `+1.2 %` with a true minus sign; an absent value is an en dash."""
    return "–" if value is None else f"{value * 100:+.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value * 100:.{digits}f} %"


FIGURE_BY_PAGE_KEY = {figure.page_key: figure for figure in STORED_FIGURES.values()}


def figure(value: float, name: str) -> str:
    """Return a figure in its unit, as the scripts show it; a cost, which may be any, by its first digits."""
    if name == "cost":
        return significant(value)
    return words.format_number(value, FIGURE_BY_PAGE_KEY[name].digits, FIGURE_BY_PAGE_KEY[name].divisor)


def ratio(value: float) -> str:
    """Return a ratio with as many digits as tell it from 1."""
    return f"{value:.2f}" if abs(value - 1) >= 0.1 else f"{value:.3f}"


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "signed_percent": signed_percent,
    "percent": percent,
    "figure": figure,
    "ratio": ratio,
    "significant": significant,
    "gib": lambda value: number(None if value is None else value / GIB, 2),
    "fragment": partial(quote, safe=""),  # a text as a part of what follows # in a link
    "short": short_digest,
}


@cache
def text_table(language: str) -> dict[str, str]:
    """Return the table of a language: key to text, in which {name} is filled in."""
    table: dict[str, str] = {}
    for figure in STORED_FIGURES.values():
        names = figure.names[language]
        table |= {f"figure.{figure.page_key}": names.title, f"unit.{figure.page_key}": names.unit}
        if figure.worse:
            table[f"js.gated.{figure.store_column}"] = names.title
    table.update(yaml.safe_load((_TEXTS_FOLDER / f"{language}.yaml").read_text(encoding="utf-8")))
    return table


def script_figures() -> dict[str, dict[str, Any]]:
    """Return how scripts show each stored figure; gated: its name for the gate, null for others."""
    return {
        figure.page_key: {
            "digits": 4 if figure.digits is None else figure.digits,
            "factor": 1 / figure.divisor,
            "gated": column if figure.worse else None,
        }
        for column, figure in STORED_FIGURES.items()
    }


def translate(language: str, key: str, **values: object) -> str:
    """Return one text with its values filled in. Raises KeyError for a key or value that is not there."""
    template = text_table(language)[key]
    return template.format_map(values) if values else template


def script_texts(language: str) -> dict[str, str]:
    """Return the texts that scripts show, and the words that both show, by key."""
    shared = ("word.", "figure.", "unit.", _SCRIPT_PREFIX)
    return {
        key.removeprefix(_SCRIPT_PREFIX): text for key, text in text_table(language).items() if key.startswith(shared)
    }


# -- the verdict on two sides, as the headline of the first page


def verdict(language: str, metric: str, lead: Ratio, best: str, other: str) -> str:
    """Return which side is better by a metric, or that this is not known. lead: the better side over the other."""
    key = {"within noise": "noise", "higher": metric, "lower": metric}.get(lead.standing, "inconclusive")
    values = {"ratio": ratio(lead.value)} if key == metric and lead.value else {}
    return translate(
        language, f"answer.{key}", best=best, other=other, figure=translate(language, f"by.{metric}"), **values
    )


def basis(language: str, lead: Ratio, side: str, base: str) -> str:
    """Return a ratio, side over base as in the tables, with its interval; or why there is none."""
    if lead.value is None or lead.low is None or lead.high is None:
        return translate(language, "answer.few")
    numbers = {"ratio": ratio(lead.value), "low": ratio(lead.low), "high": ratio(lead.high)}
    if lead.pairs:
        return translate(language, "answer.by-pairs", side=side, base=base, pairs=lead.pairs, **numbers)
    return translate(language, "answer.interval", side=side, base=base, **numbers)
