"""Opening files that others may have put there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

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
