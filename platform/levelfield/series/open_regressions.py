"""Regressions that were named and have not ended: a night that does not decide keeps the word and its exit code.

Pairs end a regression when they find it gone. One that nights named without pairs ends by nights too. A level that
somebody accepts ends both: the gate's input takes those out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from levelfield.series.findings import Finding
from levelfield.specs.record import Gated


@dataclass(frozen=True)
class OpenRegression:
    """first: the finding that named it. last: the newest one that decided. by_pairs: whether pairs have shown it."""

    first: Finding
    last: Finding
    by_pairs: bool

    def is_ended_by(self, finding: Finding) -> bool:
        """Whether a night found it gone."""
        is_better = finding.word in ("no change", "improvement")
        if finding.pairs and finding.build_change is not None:
            # The A of an older finding, which does not name it, may have had the regression itself.
            return finding.word != "regression" and (is_better or finding.against is not None)
        return is_better and not self.by_pairs and not finding.fields

    def seen_again(self, finding: Finding) -> OpenRegression:
        """Return the same with a newer finding of it. Against another build it is another regression."""
        if self.last.against and finding.against and self.last.against != finding.against:
            return named_by(finding)
        is_newest = bool(finding.pairs) or not self.by_pairs
        return replace(self, last=finding if is_newest else self.last, by_pairs=self.by_pairs or bool(finding.pairs))

    def undecided(self, tonight: Finding) -> Finding:
        """Return the finding of a night that does not decide. tonight: what the night itself shows."""
        how = f"by {self.last.pairs} pairs" if self.last.pairs else "by nights"
        shows = ": ".join(filter(None, (tonight.word, tonight.detail)))
        return tonight.model_copy(
            update={
                "word": "regression",
                "change": self.last.change,
                "low": self.last.low,
                "high": self.last.high,
                "detail": f"found in night {self.first.night}, {how}, and not gone since; tonight: {shows}",
                "fields": (),
                "build_change": None,
                "explanation": self.last.explanation,
                "against": self.last.against,
                "named": self.first.night,
            }
        )


def named_by(finding: Finding) -> OpenRegression:
    return OpenRegression(finding, finding, bool(finding.pairs))


def open_regressions(past: Iterable[Finding], night: str) -> dict[tuple[str, Gated], OpenRegression]:
    """Return by series and figure what was named before the night and has not ended since."""
    past = list(past)
    named = {(f.series, f.figure) for f in past if f.word == "regression"}
    about = (f for f in past if (f.series, f.figure) in named and f.night and f.night < night)
    last = {(f.night or "", f.series, f.figure): f for f in about}  # a night may have been judged again
    found: dict[tuple[str, Gated], OpenRegression] = {}
    for (_, series, figure), finding in sorted(last.items(), key=lambda each: each[0][0]):
        assert figure is not None
        name = (series, figure)
        known = found.get(name)
        if finding.word == "regression" and finding.named is None:
            found[name] = known.seen_again(finding) if known else named_by(finding)
        elif known is not None and finding.word != "regression" and known.is_ended_by(finding):
            del found[name]
    return found
