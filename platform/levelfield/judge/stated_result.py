"""Holds a stated result against the one that was computed again, by the fields that its maker's platform had.

A field that came later cannot be in an older bundle. Each one is marked with the revision of the result that it came
with. Every other field has to be there, whatever version the bundle claims to be of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from levelfield.judge.cross_checks import Contradiction
from levelfield.judge.packing import leaves
from levelfield.specs.base import models_of, revision_of
from levelfield.specs.result import LATER_LAYERS, Result

TOLERANCE = 1e-9  # of a number: another machine's library may round the last digit otherwise
_ABSENT = "(absent)"
_PART = re.compile(r"[^.\[\]]+")


@dataclass(frozen=True)
class StatedResult:
    """What a bundle states of a run. revision: of the result's fields, by its manifest; 0 before there was one.

    is_other_version: whether another version of the platform made it.
    """

    content: Mapping[str, Any]
    revision: int
    is_other_version: bool

    def differences(self, found: Result, model: type[BaseModel] = Result) -> Iterator[Contradiction]:
        """Yield every field of the stated result that does not follow."""
        for name, stated, ours, _ in self._compared(found, model):
            if not _equal(stated, ours):
                yield Contradiction(name, _said(stated), _said(ours))

    def left_out(self, found: Result, model: type[BaseModel] = Result) -> list[str]:
        """Return the fields with a value that the bundle lacks because they came later."""
        named = (later for *_, ours, later in self._compared(found, model) if later and ours is not None)
        return list(dict.fromkeys(named))

    def _compared(self, found: Result, model: type[BaseModel]) -> Iterator[tuple[str, Any, Any, str | None]]:
        """Yield each place with both values; of a field that came later our value twice, and the field's name."""
        content = self._without_later_layers(found.model_dump(mode="json"))
        ours = dict(leaves(content))
        theirs = dict(leaves({key: value for key, value in self.content.items() if key != "schema"}))
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            later = None
            if name not in theirs:
                with suppress(LookupError, TypeError, ValueError):  # a key with a point in it, such as a variable's
                    later = self._later(name, content, model)
            value = ours.get(name, _ABSENT)
            yield name, value if later else theirs.get(name, _ABSENT), value, later

    def _without_later_layers(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return our result without the layers of the verdict that the bundle's platform did not have yet."""
        stated = self.content.get("alignment")
        named = [each.get("name") for each in (stated or {}).get("layers") or [] if isinstance(each, Mapping)]
        later = {name for name, since in LATER_LAYERS.items() if self.revision < since and name not in named}
        if isinstance(content.get("alignment"), dict):
            layers = content["alignment"]["layers"]
            content["alignment"]["layers"] = [each for each in layers if each["name"] not in later]
        return content

    def _later(self, name: str, ours: Any, model: type[BaseModel]) -> str | None:
        """Return the field on the way to a place that the stated result lacks and may lack; None where it may not."""
        types, stated, path = [model], self.content, []
        for part in _PART.findall(name):
            path.append(part)
            ours = ours[int(part)] if isinstance(ours, list) else ours[part]
            fields = [kind.model_fields[part] for kind in types if part in kind.model_fields]
            if isinstance(stated, Mapping) and part not in stated:
                since = [revision_of(field) for field in fields]
                return ".".join(path) if since and all(self._may_lack(each, ours) for each in since) else None
            if isinstance(stated, list) and int(part) >= len(stated):
                return None
            stated = stated[int(part)] if isinstance(stated, list) else stated[part]
            types = [kind for field in fields for kind in models_of(field.annotation)] or types
        return None

    def _may_lack(self, since: int | None, ours: Any) -> bool:
        """since: the revision that a field came with; 0: before revisions were counted; None: it was always there."""
        if since is None or ours is None:
            return since is not None  # a later field that says nothing
        return self.revision < since or (self.revision == 0 and self.is_other_version)


def _equal(stated: Any, found: Any) -> bool:
    """Return whether two values are the same. NaN equals nothing; true is not 1."""
    if (isinstance(stated, float) and isinstance(found, (int, float))) or isinstance(found, float):
        if isinstance(stated, bool) or not isinstance(stated, (int, float)):
            return False
        return abs(stated - found) <= TOLERANCE * abs(found)
    return type(stated) is type(found) and bool(stated == found)


def _said(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
