"""A site as a folder: its files, what stays when it is made again, what it never touches, and its size."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hostile_texts import ALL, IMAGE
from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.pages import page_building
from levelfield.pages.page_building import BuiltPages, build_pages
from levelfield.pages.series_history import InMemoryStore
from levelfield.specs.record import RunRecord
from seeded_nights import SeededNights

ASSETS = Path(page_building.__file__).parent / "assets"
RECORDS = list(SeededNights(series=3, nights=6, faults=False).records())


def built(folder: Path, records: list[object]) -> BuiltPages:
    return build_pages(InMemoryStore(records), folder, Registry())  # type: ignore[arg-type]


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def manifest_files(folder: Path) -> dict[str, str]:
    """The files that the manifest names."""
    return dict(json.loads((folder / "site.json").read_text())["files"])


def test_the_manifest_names_every_file_and_no_other(seeded_pages: Path) -> None:
    names = {str(path.relative_to(seeded_pages)) for path in seeded_pages.rglob("*") if path.is_file()}
    assert names == {*manifest_files(seeded_pages), "site.json"} and len(names) > 40


def test_every_link_and_file_of_every_page_is_there(seeded_pages: Path) -> None:
    pages = sorted(seeded_pages.rglob("*.html"))
    assert len(pages) == 2 * (8 + 1)
    for path in pages:
        page = Page(path)
        links = [attributes.get("href") or attributes.get("src") for _, attributes in page.tags]
        for link in filter(None, links):
            target = link.partition("#")[0]
            assert not target or (path.parent / target).is_file(), f"{path.name}: {link}"
        anchors = {attributes.get("id") for _, attributes in page.tags}
        assert {link[1:] for link in links if link and link.startswith("#")} <= anchors


def test_what_a_page_begins_comes_after_all_that_it_uses(seeded_pages: Path) -> None:
    """A deferred script begins at once: where it stood before one that it uses, a slow machine lost the race."""
    for path in seeded_pages.rglob("*.html"):
        scripts = [Path(str(a["src"])).stem for tag, a in Page(path).tags if tag == "script"]
        beginning = [place for place, name in enumerate(scripts) if name in ("case", "run", "compare")]
        assert beginning in ([], [len(scripts) - 1]), f"{path.name}: {scripts}"


def test_links_to_series_lead_to_their_place(seeded_pages: Path) -> None:
    tags = [*Page(seeded_pages / "index.html").tags, *Page(seeded_pages / "nights.html").tags]
    links = [a["href"] for tag, a in tags if tag == "a" and "#" in str(a.get("href"))]
    cases = [str(link).split("#") for link in links if str(link).startswith("case-")]
    assert len(cases) > 8
    for page, anchor in cases:
        assert any(a.get("id") == anchor for _, a in Page(seeded_pages / page).tags)


def test_each_page_says_its_language_and_links_to_the_other(seeded_pages: Path) -> None:
    for path in seeded_pages.rglob("*.html"):
        tags = Page(path).tags
        is_chinese = path.parent.name == "zh"
        assert tags[0] == ("html", tags[0][1]) and tags[0][1]["lang"] == ("zh-Hans" if is_chinese else "en")
        (other,) = [a for tag, a in tags if tag == "a" and a.get("class") == "language"]
        assert other["lang"] == ("en" if is_chinese else "zh-Hans")
        assert (path.parent / str(other["href"])).resolve() == (
            seeded_pages / ("" if is_chinese else "zh") / path.name
        ).resolve()


def test_the_policy_allows_nothing_inline_and_no_page_has_any(seeded_pages: Path) -> None:
    for path in seeded_pages.rglob("*.html"):
        page = Page(path)
        policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
        assert policy and policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
        for tag, attributes in page.tags:
            assert tag not in ("style", "iframe", "object", "embed", "base", "form")
            assert not [name for name in attributes if name == "style" or name.startswith("on")]
            assert tag != "script" or attributes.get("src")
            assert not re.match(r"\w+:|//", attributes.get("href") or attributes.get("src") or "")


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    assert built(folder, [*RECORDS]).rebuilt_count == 3
    before = state(folder)
    assert built(folder, [*RECORDS]).rebuilt_count == 0
    after = state(folder)
    data = [name for name in before if name.startswith(("data/history", "data/runs"))]
    assert len(data) == 6 and all(after[name] == before[name] for name in data)


def test_a_new_run_writes_its_series_alone(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    built(folder, [*RECORDS[:-1]])
    before = state(folder)
    done = built(folder, [*RECORDS])
    after = state(folder)
    changed = {n for n in before if n.startswith(("data/history", "data/runs")) and after[n] != before[n]}
    assert (
        done.rebuilt_count == 1
        and len(changed) == 2
        and len({re.sub(r"^data/\w+-|-2026-\d+", "", n) for n in changed}) == 1
    )


def test_a_site_made_again_is_the_site_made_at_once(tmp_path: Path) -> None:
    """Bytes of a page do not depend on what lay there before, but for the time at which it was made."""
    built(tmp_path / "a", [*RECORDS[:7]])
    built(tmp_path / "a", [*RECORDS])
    built(tmp_path / "b", [*RECORDS])
    first, second = ({name: content for name, (_, content) in state(tmp_path / name).items()} for name in "ab")
    drop = re.compile(rb"2026-\d\d-\d\d \d\d:\d\d UTC|sha256:[0-9a-f]{64}")  # site.json has the digests of the pages
    assert {n: drop.sub(b"", c) for n, c in first.items()} == {n: drop.sub(b"", c) for n, c in second.items()}


def test_an_earlier_month_stays_when_a_night_is_added(tmp_path: Path) -> None:
    records = list(SeededNights(series=1, nights=40, faults=False).records())
    folder = tmp_path / "site"
    built(folder, [*records[:-1]])
    before = state(folder)
    built(folder, [*records])
    after = state(folder)
    months = {name[-10:-3]: after[name] == before[name] for name in before if name.startswith("data/runs")}
    assert months == {"2026-10": True, "2026-11": False}


def test_a_reference_that_changed_writes_the_months_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, series = tmp_path / "site", RECORDS[0].series
    built(folder, [*RECORDS])
    references = {(series.work, series.corpus): ("a reference", [3.0, 2.5])}
    monkeypatch.setattr(page_building, "stored_references", lambda registry: references)
    assert built(folder, [*RECORDS]).rebuilt_count == 3
    assert '"reference":{"name":"a reference","losses":[3.0,2.5]}' in next(folder.glob("data/runs-*")).read_text()


def test_a_run_that_is_gone_since_its_point_was_read_is_left_out(tmp_path: Path) -> None:
    class Pruned(InMemoryStore):
        def records(self, run_ids: Sequence[str]) -> Iterator[RunRecord]:
            return super().records([run_id for run_id in run_ids if run_id != RECORDS[4].run_id])

    build_pages(Pruned(RECORDS), tmp_path / "site", Registry())
    text = "".join(path.read_text() for path in (tmp_path / "site/data").glob("runs-*"))
    has_run = [f'"run":"{record.run_id}"' in text for record in RECORDS]
    assert has_run.count(False) == 1 and not has_run[4]


def test_a_series_that_is_gone_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    built(folder, [*RECORDS])
    built(folder, [r for r in RECORDS if r.series == RECORDS[0].series])
    assert len(list((folder / "data").glob("history-*"))) == 1
    assert set(manifest_files(folder)) | {"site.json"} == set(state(folder))


def test_a_lost_data_file_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    built(folder, [*RECORDS])
    next((folder / "data").glob("history-*")).unlink()
    assert built(folder, [*RECORDS]).rebuilt_count == 1


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=f"{tmp_path}.*other.files"):
        built(tmp_path, [*RECORDS])
    assert state(tmp_path).keys() == {"thesis.tex"}


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    built(folder, [*RECORDS])
    (folder / "site.json").write_text('{"schema": ')
    with pytest.raises(UsageError, match=r"site\.json"):
        built(folder, [*RECORDS])


def test_an_empty_store_explains_itself(tmp_path: Path) -> None:
    built(tmp_path / "site", [])
    for name, text in (
        ("index", "There is no run in this store yet"),
        ("nights", "No nightly run has been recorded yet"),
    ):
        assert text in Page(tmp_path / "site" / f"{name}.html").text


def test_a_first_night_says_why_nothing_was_compared(tmp_path: Path) -> None:
    (record,) = SeededNights(series=1, nights=1, faults=False).records()
    (entry,) = InMemoryStore([record]).series()
    new = {"series": entry.digest, "label": "a", "word": "new series"}
    assert record.night is not None
    build_pages(InMemoryStore([record], findings={record.night: [new]}), tmp_path / "site", Registry())
    page = Page(tmp_path / "site" / "nights.html").text
    assert "7 nights" in page and "Nothing changed" not in page


# -- texts of runs


def test_hostile_texts_are_texts(hostile_site: Path) -> None:
    for path in hostile_site.rglob("*.html"):
        page = Page(path)
        assert not [tag for tag, a in page.tags if tag == "img" or (tag == "script" and not a.get("src"))]
        assert not re.search("[\u202e\u2028\u200b\x00\x1b]", page.text), "an invisible character is shown as its number"
        assert not [a for _, a in page.tags if str(a.get("href")).startswith("javascript:")]
    text = Page(hostile_site / "index.html").text + Page(hostile_site / "nights.html").text
    assert IMAGE in text and "\\u202egnp.exe" in text


def test_hostile_texts_end_no_data_file(hostile_site: Path) -> None:
    for path in (hostile_site / "data").glob("*.js"):
        lines = path.read_text(encoding="ascii").splitlines()
        assert len(lines) == 1 and "<" not in lines[0] and lines[0].startswith(f"levelfield.data('{path.stem}','")
    content = "".join(path.read_text() for path in (hostile_site / "data").glob("runs-*.js"))
    assert all(json.dumps(text)[1:5].replace("<", "\\u003c") in content for text in ALL[:1])


# -- what is vendored, and size


def test_the_vendored_library_is_what_its_digests_say() -> None:
    lines = (ASSETS / "uplot/SHA256SUMS").read_text().splitlines()
    assert len(lines) == 3
    for line in lines:
        expected, name = line.split()
        assert hashlib.sha256((ASSETS / "uplot" / name).read_bytes()).hexdigest() == expected, name
    assert "MIT" in (ASSETS / "uplot/LICENSE").read_text() and "1.6.32" in (ASSETS / "uplot/SOURCE").read_text()


def test_the_first_page_of_300_series_is_under_100_kb(tmp_path: Path) -> None:
    build_pages(SeededNights(series=300, nights=1).results(), tmp_path / "site", Registry())
    size = (tmp_path / "site/index.html").stat().st_size
    assert 20_000 < size < 100_000, f"{size:,} bytes"
