"""The docs name files, options and commands that exist, and the platform has no code that nothing calls."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from levelfield.cli.command_line import parse_command_line
from levelfield.specs.free_fields import FREE_FIELDS

ROOT = Path(__file__).resolve().parents[3]
PLATFORM = ROOT / "platform" / "levelfield"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENDINGS = ("py", "yaml", "json", "md", "j2", "toml", "svg")
# Files of others or of a run: of FlagPerf, of `make gpu-check`, and of the invented vendor of docs/writing-a-vendor.md.
FOREIGN = re.compile(r"config/.*|(recorded|vendors/acme|DIR|gpu-check)/.*")
# Options of pip, pytest, container engines and of that vendor's tool.
FOREIGN_OPTIONS = {
    *("--container-image", "--deadline", "--no-requeue", "--switches", "--propagate", "--cpu-bind"),  # of Slurm
    *("--nodes", "--ntasks-per-node", "--gres", "--exclusive", "--mem", "--partition", "--account", "--time"),
    *("--chdir", "--output", "--error", "--job-name", "--export", "--open-mode", "--kill-on-bad-exit"),
    *("--nv", "--rocm"),  # of apptainer
    *("--durations", "--gpus", "--no-deps", "--only-binary", "--python-version", "--query"),
}
# What a library calls: validators of pydantic, hooks of pytest, functions at exit. Then what only tools of a developer
# use: the files of `make host-runs`, the count of benchmarks/.
CALLED_BY_LIBRARIES = ("model_validator", "field_validator", "model_serializer", "field_serializer", "atexit.register")
CALLED_BY_HTTP = {"redirect_request", "do_GET", "do_HEAD", "log_message"}  # of http.server's handler, urllib's opener
USED_BY_TOOLS = {"HostRuns", "pytest_generate_tests", "test_conformance", "test_launcher"}


def page_texts() -> Iterator[tuple[Path, str]]:
    yield from ((page, page.read_text(encoding="utf-8")) for page in PAGES)


def named_files() -> list[tuple[str, str]]:
    pattern = rf"`([\w.-]+(?:/[\w.-]+)+\.(?:{'|'.join(ENDINGS)}))`"
    return [(str(p.relative_to(ROOT)), name) for p, text in page_texts() for name in re.findall(pattern, text)]


def test_a_file_that_a_page_names_is_there() -> None:
    references = sorted(set(named_files()))
    assert len(references) > 60
    for page, name in references:
        places = (ROOT / name, PLATFORM / name, PLATFORM.parent / name, (ROOT / page).parent / name)
        assert FOREIGN.fullmatch(name) or any(place.exists() for place in places), f"{page}: {name} is not there"


def test_an_option_that_a_page_names_is_there() -> None:
    sources = [
        *PLATFORM.glob("cli/*.py"),
        *PLATFORM.glob("node/*.py"),
        *ROOT.glob("benchmarks/*.py"),
        *ROOT.glob("tools/*.py"),
    ]
    text = "".join(path.read_text() for path in sources)
    options = set(re.findall(r'"(--[a-z][a-z-]*)"', text)) | {"--help"}
    options |= {f"--no-{name}" for name in re.findall(r'"--([a-z-]+)",\s+action=argparse\.BooleanOptionalAction', text)}
    options |= {option for name in FREE_FIELDS for option in (f"--{name}".replace("_", "-"), f"--no-{name}")}
    references = {(page.name, o) for page, text in page_texts() for o in re.findall(r"(?<=[` ])--[a-z][a-z-]+", text)}
    assert len(references) > 60
    assert [(page, o) for page, o in sorted(references) if o not in options | FOREIGN_OPTIONS] == []


def commands() -> list[str]:
    """The commands of the pages' indented blocks, without remarks behind them and without brackets."""
    lines = []
    for _, text in page_texts():
        for line in re.findall(
            r"^ {4,}(?:\$ )?(?:python )?run_benchmarks\.py (.+)$", text.replace("\\\n", " "), re.MULTILINE
        ):
            bare = re.sub(r"\s{3,}.*|\s#.*|\.\.\.", "", line)
            lines.append(re.sub(r"[\[\]]|\|[A-Za-z|]+", "", bare).strip())
    return sorted(set(lines))


@pytest.mark.parametrize("command", commands())
def test_a_command_of_a_page_is_read(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [(re.fullmatch("N", word) and "1") or word for word in shlex.split(command)]
    try:
        parse_command_line([{"F": "torch", "S": "smoke"}.get(word, word) for word in words])
    except SystemExit as ended:
        assert ended.code == 0, capsys.readouterr().err


def test_there_are_commands_to_read() -> None:
    assert len(commands()) > 25


@cache
def uses() -> Counter[str]:
    """How often each word is in what runs: the platform, the models, the vendors, and the entry."""
    folders = (ROOT / name for name in ("platform", "models", "vendors", "docker"))
    files = [
        ROOT / "run_benchmarks.py",
        *(p for f in folders for p in f.rglob("*") if p.suffix in (".py", ".j2", ".yaml")),
    ]
    return Counter(word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))


def defined() -> Iterator[tuple[str, str]]:
    """Every function and class of the platform that no library calls, with its file."""
    for path in PLATFORM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("__"):
                decorated = " ".join(map(ast.unparse, node.decorator_list))
                if not any(name in decorated for name in CALLED_BY_LIBRARIES):
                    yield node.name, str(path.relative_to(ROOT))


def test_no_code_of_the_platform_is_without_a_caller() -> None:
    """A name that is only where it is defined: code that its tests alone use, or nobody. Remove it, or call it."""
    names = Counter(name for name, _ in defined())
    unused = {name for name, times in names.items() if uses()[name] <= times} - USED_BY_TOOLS - CALLED_BY_HTTP
    assert sorted((name, path) for name, path in defined() if name in unused) == []


def test_the_files_that_make_quick_leaves_out_are_there() -> None:
    names = (ROOT / "tests" / "slow_files").read_text().split()
    assert names == sorted(set(names))
    assert [name for name in names if not (ROOT / name).is_file()] == []
