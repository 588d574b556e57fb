"""A site harms nothing that it did not write: links, files, pipes and folders in its places, edited manifests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.pages import page_building
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from levelfield.pages.site_files import PagesWriter
from levelfield.rundir.folder_descriptor import FolderDescriptor
from seeded_nights import SeededNights

RECORDS = list(SeededNights(series=2, nights=2, faults=False).records())
THESIS = "years of work"


def build(folder: Path, private: bool = False) -> None:
    build_pages(InMemoryStore(RECORDS), folder, Registry(), private=private)


def tree(folder: Path) -> dict[str, object]:
    """What lies in a folder: links with their targets, files with times and contents."""
    entries: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            entries[name] = str(path.readlink())
        elif path.is_file():
            entries[name] = (path.stat().st_mtime_ns, path.read_bytes())
        else:
            entries[name] = path.stat().st_mode
    return entries


@pytest.fixture
def site(tmp_path: Path) -> Path:
    build(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "thesis.tex").write_text(THESIS)
    return folder


def list_file(site: Path, name: str, **more: object) -> None:
    """Edit the manifest: another file is listed as one of the site's that is not made any more."""
    content = json.loads((site / "site.json").read_text())
    content["files"][name] = ""
    (site / "site.json").write_text(json.dumps({**content, **more}))


def refused(site: Path, name: str) -> None:
    before = tree(site.parent)
    with pytest.raises(UsageError, match=name):
        build(site)
    assert tree(site.parent) == before, "something was changed before it was refused"


def test_an_error_names_the_folder_and_no_option_of_another_command(site: Path) -> None:
    """`report pages DIR` has no --html; `nightly run` has."""
    (site / "site.json").unlink()
    refused(site, f"^{site}: has other files; name a new folder")


@pytest.mark.parametrize("name", ["data", "assets", "assets/uplot", "zh"])
def test_a_folder_that_is_a_link_is_refused(site: Path, foreign: Path, name: str) -> None:
    (site / name).rename(site.parent / "away")
    (site / name).symlink_to(foreign)
    list_file(site, f"{'data' if name == 'zh' else name}/thesis.tex")
    refused(site, f"{site / name}: found a link, expected a folder of these pages")


def test_a_new_site_follows_no_link_of_a_prepared_folder(tmp_path: Path, foreign: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "data").symlink_to(foreign)
    (site / "site.json").write_text('{"schema": "levelfield.site/1", "files": {"data/thesis.tex": ""}}')
    refused(site, "key 'contents': missing")
    (site / "site.json").write_text('{"schema": "levelfield.site/1", "files": {}, "contents": {}}')
    refused(site, "found a link")


PLACED: dict[str, Callable[[Path, Path], object]] = {
    "a file that is not as": lambda path, foreign: path.write_text("mine"),
    "a link": lambda path, foreign: path.symlink_to(foreign / "thesis.tex"),
    "a named pipe": lambda path, foreign: os.mkfifo(path),
    "a folder": lambda path, foreign: path.mkdir(),
}


NAMES = ("index.html", "data/texts-en.js", "zh/guide.html", "assets/page.js")
FIRST = tuple(zip(NAMES, PLACED, strict=True))  # each name and each kind once


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*pair, marks=[] if pair in FIRST else [pytest.mark.thorough]) for pair in product(NAMES, PLACED)],
)
def test_what_lies_in_the_place_of_a_file_is_refused(site: Path, foreign: Path, kind: str, name: str) -> None:
    (site / name).unlink()
    PLACED[kind](site / name, foreign)
    refused(site, f"{site / name}: found {kind}")


@pytest.mark.parametrize("kind", PLACED)
def test_what_the_manifest_lists_and_did_not_record_is_not_removed(site: Path, foreign: Path, kind: str) -> None:
    PLACED[kind](site / "data/thesis.tex", foreign)
    list_file(site, "data/thesis.tex")
    refused(site, f"thesis.tex: found {kind}")


def test_a_recorded_content_elsewhere_is_not_reached_by_a_name(site: Path, foreign: Path) -> None:
    """Neither a name that leads elsewhere nor one without a plain form is taken, with the right digest too."""
    digest = "sha256:" + hashlib.sha256(THESIS.encode()).hexdigest()
    manifest = (site / "site.json").read_text()
    elsewhere = ("../foreign/thesis.tex", str(foreign / "thesis.tex"), "data/../../foreign/thesis.tex", "data//x")
    for name in (*elsewhere, "assets/", "notes.txt", "zh/zh/index.html", "data/.x"):
        (site / "site.json").write_text(manifest)
        contents = {**json.loads(manifest)["contents"], name: [digest]}
        list_file(site, name, contents=contents)
        refused(site, "key 'files'")
        (site / "site.json").write_text(manifest)
        (site / "site.json").write_text(json.dumps({**json.loads(manifest), "contents": contents}))
        refused(site, "key 'files'")


@pytest.mark.parametrize("kind", ["a link", "a named pipe", "a folder"])
def test_a_manifest_that_is_no_file_is_refused(site: Path, foreign: Path, kind: str) -> None:
    (site / "site.json").rename(foreign / "site.json")
    if kind == "a link":
        (site / "site.json").symlink_to(foreign / "site.json")
    else:
        PLACED[kind](site / "site.json", foreign)
    refused(site, f"site.json.*found {kind}")


def test_the_folder_that_is_named_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "site").symlink_to(tmp_path / "served")
    build(tmp_path / "site", private=True)
    build(tmp_path / "site", private=True)
    assert (tmp_path / "site").is_symlink() and (tmp_path / "served/index.html").is_file()
    assert (tmp_path / "served").stat().st_mode & 0o777 == 0o700
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    with pytest.raises(UsageError, match="nowhere: "):
        build(tmp_path / "nowhere")


@pytest.mark.parametrize("swapped", ["data", "data/texts-en.js"])
def test_a_link_that_is_swapped_in_before_the_write_leads_nowhere(
    site: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    check = PagesWriter._refuse_foreign

    def then_swapped(writer: PagesWriter, *arguments: Any) -> None:
        check(writer, *arguments)
        (site / swapped).rename(site.parent / "away")
        (site / swapped).symlink_to(foreign if swapped == "data" else foreign / "thesis.tex")

    monkeypatch.setattr(PagesWriter, "_refuse_foreign", then_swapped)
    build(site)
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    assert (foreign / "thesis.tex").read_text() == THESIS


def test_files_beside_the_site_stay(site: Path) -> None:
    for name in ("about.html", "data/mine.js", "robots.txt"):
        (site / name).write_text("mine")
    before = {name: content for name, content in tree(site).items() if "mine" in str(content)}
    build_pages(InMemoryStore(RECORDS[:1]), site, Registry())
    assert {name: tree(site)[name] for name in before} == before and len(before) == 3


def test_what_is_interrupted_while_files_get_their_places_is_mended(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each number of moved files the next try makes the whole site, and no file is taken for a foreign one."""
    move, left = FolderDescriptor.move_to, 0

    def interrupted(folder: FolderDescriptor, *arguments: Any) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        move(folder, *arguments)

    for moved in (0, 1, 2, 30):
        monkeypatch.setattr(FolderDescriptor, "move_to", interrupted)
        left = moved
        monkeypatch.setattr(
            page_building, "_code_digest", lambda moved=moved: str(moved)
        )  # every data file is made again
        with pytest.raises(KeyboardInterrupt):
            build(site)
        monkeypatch.setattr(FolderDescriptor, "move_to", move)
        assert not list(site.glob(".levelfield-new-*"))
        build_pages(InMemoryStore(RECORDS[:1]), site, Registry())
        names = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
        assert names == {*json.loads((site / "site.json").read_text())["files"], "site.json"}
        build(site)


def test_new_files_of_a_killed_command_are_removed_and_other_things_stay(site: Path) -> None:
    left, mine = site / ".levelfield-new-00112233", site / ".levelfield-new-aabbccdd"
    for folder in (left, mine):
        folder.mkdir()
        (folder / "0").write_text("x")
    (mine / "thesis.tex").write_text(THESIS)
    with PagesWriter(site) as writer:  # of another command, which goes on
        (going,) = {*site.glob(".levelfield-new-*")} - {left, mine}
        writer.write("guide.html", "x")
        build(site)
        assert [path.name for path in going.iterdir()] == ["0"]
    assert not left.exists() and not going.exists() and (mine / "thesis.tex").read_text() == THESIS
