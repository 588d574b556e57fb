"""Documents of files, each read and checked once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, cast

from levelfield.specs.base import Document, parse
from levelfield.specs.bounded_reading import read_mapping

D = TypeVar("D", bound=Document)


class DocumentCache:
    """The content and the documents of the files that were read so far."""

    def __init__(self) -> None:
        self._contents: dict[Path, Any] = {}
        self._documents: dict[tuple[type[Document], Path], Document] = {}

    def content(self, path: Path) -> Any:
        """Return the raw content of a YAML or JSON file. Raises DocumentError when it cannot be read."""
        if path not in self._contents:
            self._contents[path] = read_mapping(path)
        return self._contents[path]

    def document(self, kind: type[D], path: Path) -> D:
        """Return the document in this file. Raises DocumentError when it is missing, unreadable or wrong."""
        if (kind, path) not in self._documents:
            self._documents[kind, path] = parse(kind, self.content(path), str(path))
        return cast(D, self._documents[kind, path])
