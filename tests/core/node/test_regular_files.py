"""Files that others may have put there, or write at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from levelfield.node.node_duty import write_files
from levelfield.node.regular_files import open_regular


def test_an_interrupt_while_a_file_is_opened_stays_an_interrupt(tmp_path: Path) -> None:
    """It may come in any line. A descriptor that is closed twice would be an error of the storage instead."""
    path, lines = tmp_path / "rank0.alive", 0
    path.write_bytes(b"1")
    is_done = False
    while not is_done:
        left = lines

        def traced(frame: FrameType, event: str, returned: object) -> Any:
            nonlocal left
            del returned  # a file that nobody holds is closed, as by an interrupt
            if frame.f_code.co_filename.endswith(("regular_files.py", "os.py", "<frozen os>")) and event != "call":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return traced

        before = sys.gettrace()
        sys.settrace(traced)
        try:
            open_regular(path).close()
            is_done = True
        except KeyboardInterrupt:
            lines += 1
        finally:
            sys.settrace(before)
    assert lines > 5


def test_a_node_in_between_does_not_take_the_file_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes share a folder. Each container counts its processes from 1, so both may be process 7."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    replace = Path.replace

    def after_the_other_node(path: Path, target: Any) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_files(tmp_path, {"run/job.json": "{}"})
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", after_the_other_node)
    write_files(tmp_path, {"run/job.json": "{}"})
    assert [(path.name, path.read_text()) for path in (tmp_path / "run").iterdir()] == [("job.json", "{}")]
