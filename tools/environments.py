#!/usr/bin/env python3
"""Makes the frameworks' environments for the processor, as a run would; `make test` does so beside its first tests.

torch's is left out where this Python has that version: tests train by this Python, and one of tests/e2e makes torch's.

.venvs/dev/bin/python tools/environments.py
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter

from levelfield.catalog.registry import Registry
from levelfield.errors import NotHere
from trainings.interpreters import interpreters


def main() -> None:
    with interpreters(say) as interpreter:
        for framework in Registry().frameworks:
            try:
                interpreter(framework)
            except NotHere as error:  # the tests that need it fail and name it
                print(error, flush=True)


def say(text: str) -> None:
    """Passes on what the platform says, without pip's list of packages."""
    if not text.startswith(("Collecting", "Installing", "Building")):
        print(text, flush=True)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
