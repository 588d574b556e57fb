"""What ranks imported and no digest of the code covers, as outcome.json lists it."""

from __future__ import annotations

from levelfield.rundir.event_lines import Event


def digests_elsewhere(outcome: Event) -> list[str]:
    """Return the digests of the files, in order. A rank that did not say what it imported counts as such a file."""
    listed = outcome.get("elsewhere")
    files = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return sorted({str(each.get("sha256")) for each in files})


def warning_elsewhere(outcome: Event) -> tuple[str, ...]:
    """Return a warning for a run that imported such files. It names no path: a bundle has others."""
    if number := len(digests_elsewhere(outcome)):
        files = "1 file was" if number == 1 else f"{number} files were"
        return (f"{files} imported from elsewhere, and no digest of the code covers them: `elsewhere` in outcome.json",)
    return ()
