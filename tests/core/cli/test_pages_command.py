"""`report pages` of runs and of a store."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.specs.paths import RunPaths
from levelfield.store.database import Store
from plans import PLUGINS
from recorded_runs import change_steps
from seeded_nights import SeededNights
from stored_records import real_record


def pages(folder: Path) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.html")))


def test_a_run_becomes_pages_with_figures_from_its_raw_files(
    run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edited result.json changes no page; twice the time of each step halves the speed."""
    arguments = ["report", "pages", str(tmp_path / "site"), str(run.root), "--plugins", str(PLUGINS)]
    run.result.write_text("{}")
    assert main(arguments) == 0
    label, place, *words = capsys.readouterr().out.split()
    assert (label, place) == ("pages", f"{tmp_path / 'site'}:") and words[:4] == ["1", "run(s)", "in", "1"]
    assert any("index.html" in word for word in words)
    (history,) = (tmp_path / "site/data").glob("history-*")
    first = figure(history, "tokens")
    change_steps(run, lambda event: event.update(end_ns=2 * event["end_ns"] - 7_000_000_000_000), rank=0)
    change_steps(run, lambda event: event.update(end_ns=2 * event["end_ns"] - 7_000_000_000_000), rank=1)
    assert main([*arguments[:2], str(tmp_path / "again"), *arguments[3:]]) == 0
    (history,) = (tmp_path / "again/data").glob("history-*")
    assert first and figure(history, "tokens") == pytest.approx(first / 2, rel=0.02)


def figure(history: Path, name: str) -> float:
    return float(
        json.loads(history.read_text().split("','")[1].removesuffix("');\n").replace("\\\\", "\\"))["columns"][name][0]
    )


def test_a_store_becomes_pages_and_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, site = tmp_path / "results.sqlite", tmp_path / "site"
    with Store.open(str(file)) as store:
        store.add(SeededNights(series=4, nights=5).records())
        runs = sum(map(len, store.points().values()))
    before = file.read_bytes()
    assert main(["report", "pages", str(site), "--store", str(file)]) == 0
    words = capsys.readouterr().out.split()
    assert words[2:7] == [str(runs), "run(s)", "in", "4", "series,"] and file.read_bytes() == before
    assert "5," in pages(site) and "MI300X" in pages(site)
    assert main(["report", "pages", str(site), "--store", str(file)]) == 0
    words = capsys.readouterr().out.split()
    assert words[words.index("again;") - 2] == "0"


def test_the_gate_judges_the_last_night_of_a_store_for_its_pages(tmp_path: Path) -> None:
    """Nobody ran the gate: its rule gives words, levels and the smallest detectable change all the same."""
    nights = SeededNights(series=4, nights=20)
    results = nights.results()
    with Store.open(str(tmp_path / "r.sqlite")) as store:
        store.add(nights.records())
        night = store.points()[results.series()[0].digest][-1].night or ""
        store.add_expected_entries(night, "nightly", {entry.series.label: entry.digest for entry in results.series()})
    assert main(["report", "pages", str(tmp_path / "site"), "--store", str(tmp_path / "r.sqlite")]) == 0
    text = pages(tmp_path / "site")
    *_, after = text.partition(f"Night {night}: ")
    assert after.startswith("3 of 4")
    for name in ("Smallest change", "gate compared"):
        assert name in text
    with Store.open(str(tmp_path / "r.sqlite"), read_only=True) as store:
        assert store.findings() == [], "pages store nothing"


def test_a_store_gives_the_pages_that_its_runs_give(tmp_path: Path) -> None:
    """Nothing is lost or changed between a record and a page by the store."""
    from levelfield.catalog.registry import Registry
    from levelfield.pages.page_building import build_pages
    from levelfield.pages.series_history import InMemoryStore

    records = list(SeededNights(series=4, nights=5).records())
    build_pages(InMemoryStore(records), tmp_path / "given", Registry())
    with Store.open(str(tmp_path / "r.sqlite")) as store:
        store.add(records)
        build_pages(store, tmp_path / "stored", Registry())
    for path in sorted((tmp_path / "given/data").glob("*")):
        assert (tmp_path / "stored/data" / path.name).read_bytes() == path.read_bytes(), path.name


class TestOneStoreOfManyCheckouts:
    """The default store of a user has the nights of another checkout, and one run of this one."""

    @pytest.fixture
    def store(self, run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.delenv("LEVELFIELD_STORE")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        monkeypatch.setenv("LEVELFIELD_RUNS", str(run.root.parent))
        with Store.open() as store:
            store.add([real_record(run.root), *SeededNights(series=2, nights=3).records()])
        return tmp_path / "data/levelfield/results.sqlite"

    def lines(self, capsys: pytest.CaptureFixture[str], site: Path, *more: str) -> tuple[int, str]:
        """Return how many runs the pages have, and the command's last sentence."""
        assert main(["report", "pages", str(site), *more]) == 0
        words = " ".join(capsys.readouterr().out.split())
        return int(words.split()[2]), words.partition("index.html")[2].strip()

    def test_pages_have_the_runs_of_the_checkout_and_say_what_is_left_out(
        self, store: Path, run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        others, site = len([*SeededNights(series=2, nights=3).records()]), tmp_path / "site"
        count, last = self.lines(capsys, site)
        assert count == 1 and f"left out {others} run(s)" in last
        command = last.partition("all runs: ")[2]
        assert f"not in these pages: {others}." in (site / "index.html").read_text()
        assert "Night 20" not in pages(site), "the nights are those of another checkout"
        assert self.lines(capsys, tmp_path / "again", *command.split()[3:]) == (others + 1, "")
        assert 'id="left-out"' not in pages(tmp_path / "again")

    def test_a_store_that_the_environment_names_is_shown_as_a_whole(
        self, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LEVELFIELD_STORE", str(store))
        assert self.lines(capsys, tmp_path / "site") == (len([*SeededNights(series=2, nights=3).records()]) + 1, "")

    def test_a_checkout_without_runs_shows_the_whole_store(
        self, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LEVELFIELD_RUNS", str(tmp_path / "empty"))
        assert self.lines(capsys, tmp_path / "site") == (len([*SeededNights(series=2, nights=3).records()]) + 1, "")

    def test_a_checkout_that_ran_a_night_shows_all_nights_of_its_suite(
        self, store: Path, run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The folders of earlier nights may be gone."""
        *nights, last_run = SeededNights(series=2, nights=3).records()
        (run.root.parent / last_run.run_id).mkdir()
        (run.root.parent / last_run.run_id / "plan.json").touch()
        assert self.lines(capsys, tmp_path / "site") == (len(nights) + 2, "")
        assert f"Night {last_run.night}" in pages(tmp_path / "site")


def test_a_store_that_is_absent_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "pages", str(tmp_path / "site"), "--store", str(tmp_path / "absent.sqlite")]) == 2
    assert "absent.sqlite" in capsys.readouterr().err and not (tmp_path / "site").exists()


def test_a_folder_with_other_files_is_refused(
    tmp_path: Path, run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert main(["report", "pages", str(tmp_path), str(run.root), "--plugins", str(PLUGINS)]) == 2
    assert f"{tmp_path}:" in (message := capsys.readouterr().err) and "other files" in message


# -- a private run over public results


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A store of public results with their pages in `site`, in a folder of git."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    file = tmp_path / "public.sqlite"
    with Store.open(str(file)) as store:
        store.add(SeededNights(series=2, nights=3).records())
    assert main(["report", "pages", str(tmp_path / "site"), "--store", str(file)]) == 0
    return file


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_private_run_lies_over_public_results_and_reaches_no_public_file(run: RunPaths, public: Path) -> None:
    before, mine = contents(public.parent), public.parent / "mine"
    arguments = ["--store", str(public), "--plugins", str(PLUGINS)]
    assert main(["report", "pages", str(mine), str(run.root), "--overlay", *arguments]) == 0
    made = contents(mine)
    after = {name: content for name, content in contents(public.parent).items() if not name.startswith("mine/")}
    assert after == before  # the store and the public pages, to the byte
    theirs = next(iter(SeededNights(series=2, nights=3).records())).run_id
    assert all(any(name.encode() in content for content in made.values()) for name in (run.root.name, theirs))
    pages_of_both = [name for name in made if name.endswith(".html")]
    marks = ("Private: runs that are not published", "非公开")
    assert all(any(mark.encode() in made[name] for mark in marks) for name in pages_of_both)
    status = ["git", "-C", str(public.parent), "status", "--porcelain", "--untracked-files=all"]
    assert "mine" not in subprocess.run(status, capture_output=True, text=True, check=True).stdout
    assert mine.stat().st_mode & 0o077 == 0
    assert not any(b"Private: runs" in content for content in contents(public.parent / "site").values())


def test_private_pages_and_public_ones_never_share_a_folder(
    run: RunPaths, public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, mine = public.parent / "site", public.parent / "mine"
    beside = [str(run.root), "--overlay", "--store", str(public), "--plugins", str(PLUGINS)]
    before = contents(site)
    assert main(["report", "pages", str(site), *beside]) == 2 and contents(site) == before
    assert f"{site}: " in (message := capsys.readouterr().err) and "has public" in message
    assert main(["report", "pages", str(mine), *beside]) == 0
    private = contents(mine)
    assert main(["report", "pages", str(mine), "--store", str(public)]) == 2 and contents(mine) == private
    assert f"{mine}: " in (message := capsys.readouterr().err) and "has private" in message
    assert main(["report", "pages", str(mine), *beside]) == 0  # again
    assert main(["report", "pages", str(mine), "--overlay", "--store", str(public)]) == 2
    assert "--overlay" in capsys.readouterr().err
