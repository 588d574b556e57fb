"""Processes that add runs to a store one by one, and say of each that it is stored. test_writers.py kills them.

python writer.py URL RECORD FOLDER: for each name on stdin one process starts, and its number is printed. It writes the
id of each stored run into FOLDER/NAME.out until it is ended. All of them are forks, which need not import anything.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from itertools import count
from pathlib import Path

import levelfield.store.run_record  # noqa: F401 - what it imports is there before the forks
from levelfield.specs.record import RunRecord
from levelfield.store.database import Store


def main(url: str, file: str, folder: str) -> None:
    record = RunRecord.model_validate_json(Path(file).read_bytes())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets a process that has ended
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            _write(url, record, line.strip(), Path(folder))
        print(process, flush=True)


def _write(url: str, record: RunRecord, name: str, folder: Path) -> None:
    with (folder / f"{name}.out").open("w") as out, (folder / f"{name}.err").open("w") as err:
        try:
            with Store.open(url) as store:
                for number in count():
                    added = store.add([_run(record, name, number)])
                    assert added.new_count == 1, added
                    print(_run(record, name, number).run_id, file=out, flush=True)
        except BaseException:
            traceback.print_exc(file=err)
    os._exit(1)


def _run(record: RunRecord, name: str, number: int) -> RunRecord:
    """Every third run is of a series of its own, so that writers also add what runs refer to."""
    run_id = f"20260102T030405Z_{name}_{number:06}"
    case = f"case {name} {number // 3 if number % 3 == 0 else ''}"
    series = record.series.model_copy(update={"case": case})
    return record.model_copy(update={"run_id": run_id, "content": f"sha256:{run_id}", "series": series})


if __name__ == "__main__":
    main(*sys.argv[1:])
