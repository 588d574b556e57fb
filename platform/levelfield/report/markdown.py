"""Renders the report of one run from its template."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from levelfield.report import words
from levelfield.report.escapes import code, markdown
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result


def run_report(result: Result, plan: Plan) -> str:
    """Return report.md: every figure with its origin, or the reason why it is missing."""
    return _template().render(
        r=result,
        plan=plan,
        number=words.number,
        gib=words.gib,
        percent=words.percent,
        status=words.status,
        pace_lines=words.pace_lines,
        expert_lines=words.expert_lines,
        parameters=words.parameters,
    )


@cache  # compiling it takes longer than all else of a report
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("levelfield", "report"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
        finalize=_escaped,
    )
    environment.filters["code"] = code
    return environment.get_template("run.md.j2")


def _escaped(value: object) -> str:
    """Return what an expression of the template writes, as Markdown that shows it. StrictUndefined raises here."""
    return markdown(value if isinstance(value, str) else str(value))
