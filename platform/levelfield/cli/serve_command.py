"""`serve`: gives out the pages of `report --html` on this machine, read-only."""

from __future__ import annotations

import argparse
from pathlib import Path

_HELP = """\
Serve the pages that `report --html DIR` wrote. Only the files of these pages
are given out, only to GET and HEAD, and only on this machine by default.
Pages that are made again while it runs are served as they are then.
Ctrl-C ends it.

examples:
  run_benchmarks.py serve site
  run_benchmarks.py serve site --port 8080
"""
_PORT = 8730


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _HELP
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("site"), metavar="DIR", help="the folder of the pages (site)"
    )
    parser.add_argument("--port", type=int, default=_PORT, metavar="N", help=f"the port (default: {_PORT}; 0: any)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="an address of this machine that others may reach (default: 127.0.0.1, this machine alone)",
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Return 0. Raises UsageError for a folder without pages, and for the address."""
    from levelfield.pages.page_server import opened_server

    server = opened_server(options.folder, options.host, options.port)
    print(f"serving {options.folder} at {server.url} (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("ended")
    finally:
        server.server_close()
    return 0
