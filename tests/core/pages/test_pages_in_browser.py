"""The pages in a browser, from a file and from a web server: no error, no request to the outside, clicks, keys, axe."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from page_visits import (
    DESKTOP,
    GIVEN_UP,
    PHONE,
    axe,
    background,
    case_page,
    first_series,
    fits,
    histories,
    open_case,
    open_run,
    rows,
    run_of,
    unfold,
    until,
    watched,
)
from seeded_nights import SeededNights

PAGES = ("index.html", "by-mfu.html", "nights.html", "nodes.html", "published.html", "guide.html")


# A phone has less room; test_step_in_browser.py has a page of light colours.
@pytest.mark.parametrize(
    ("language", "options"),
    [
        pytest.param("", DESKTOP, id="light", marks=pytest.mark.thorough),
        pytest.param("zh/", {**PHONE, "color_scheme": "dark"}, id="dark phone"),
    ],
)
def test_every_page_is_right_by_axe_and_fits_its_width(
    browser: Any, seeded_pages: Path, language: str, options: Any
) -> None:
    with watched(browser, **options) as page:
        for name in PAGES:
            page.goto(f"file://{seeded_pages}/{language}{name}")
            assert fits(page) and axe(page) == [], name
        open_case(page, seeded_pages, language)
        unfold(page.locator("section[data-drawn] details").first)
        assert fits(page) and axe(page) == [], "case"
        open_run(page, seeded_pages, folder=language)
        unfold(page.locator("details").first)
        assert fits(page) and axe(page) == [], "run"
        assert page.evaluate("document.documentElement.lang") == ("zh-Hans" if language else "en")


@pytest.mark.parametrize(
    ("options", "most"),
    [pytest.param(DESKTOP, 900, id="desktop", marks=pytest.mark.thorough), pytest.param(PHONE, 844, id="phone")],
)
def test_which_chip_how_much_and_how_sure_are_on_the_first_screen(
    browser: Any, seeded_pages: Path, options: Any, most: int
) -> None:
    with watched(browser, **{**options, "java_script_enabled": False}) as page:
        page.goto(f"file://{seeded_pages}/index.html")
        assert fits(page)
        for part in ("#answer", "#sure", ".trust", "#comparable", ".bars tbody tr:first-child"):
            box = page.locator(part).first.bounding_box()
            assert box and box["height"] > 10 and box["y"] + box["height"] <= most, part


def test_axe_names_a_planted_fault(browser: Any) -> None:
    with watched(browser) as page:
        page.set_content("<html lang='en'><title>a</title><main><h1>a</h1><button></button></main></html>")
        [violation] = axe(page)
        assert violation.startswith("button-name: <button>")


def test_a_table_sorts_filters_and_copies(browser: Any, seeded_pages: Path) -> None:
    with watched(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"file://{case_page(seeded_pages)}")
        whole = rows(page)
        sort = page.get_by_role("button", name="Throughput tokens/s/device").first
        sort.click()
        speeds = [float(row[2].replace(",", "")) for row in rows(page)]
        assert (
            speeds == sorted(speeds)
            and len(set(speeds)) == 8
            and [row[2] for row in whole] != [row[2] for row in rows(page)]
        )
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
        sort.press("Enter")
        assert [float(row[2].replace(",", "")) for row in rows(page)] == speeds[::-1]
        page.get_by_role("searchbox").first.fill("TORCH regression")
        assert [row[1] for row in rows(page)] == ["regression"]
        assert (page.locator(".count").first.text_content() or "").startswith("1 of 8")
        page.get_by_role("button", name="Copy table").first.click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()").splitlines()
        assert len(copied) == 2 and copied[1].split("\t")[1] == "regression" and len(copied[1].split("\t")) == 10
        page.get_by_role("searchbox").first.fill("")
        assert len(rows(page)) == len(whole)


def test_absent_values_come_last_in_both_directions_and_no_cell_is_a_formula(browser: Any, seeded_pages: Path) -> None:
    with watched(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"file://{seeded_pages}/index.html")
        page.evaluate(
            """() => {
                const cells = [[1, '=1+1'], [null, '@x'], [-2, '-3.1 %'], [10, '−x']];
                const rows = cells.map(([v, text]) => [{v, text: String(v)}, text]);
                const place = levelfield.el('div', {id: 'mine'});
                document.querySelector('main').prepend(place);
                levelfield.tables.add(place, 'c', [{name: 'n', number: true}, 't'], rows);
            }"""
        )
        button = page.locator("#mine th button").first
        button.click()
        assert [row[0] for row in rows(page)] == ["-2", "1", "10", "null"]
        button.click()
        assert [row[0] for row in rows(page)] == ["10", "1", "-2", "null"]
        page.locator("#mine .copy").click()
        page.locator("#mine .copy", has_text="Copied").wait_for()
        copied = [line.split("\t") for line in page.evaluate("navigator.clipboard.readText()").splitlines()]
        assert copied == [["n", "t"], ["10", "'−x"], ["1", "'=1+1"], ["-2", "-3.1 %"], ["null", "'@x"]]


@pytest.mark.thorough
def test_runs_of_pairs_are_in_the_table_and_in_no_chart(browser: Any, tmp_path: Path) -> None:
    calm = list(SeededNights(series=1, nights=3, faults=False).records())
    pair = {"run_id": "pair", "began": "2026-12-31T00:00:00Z", "purpose": "confirm-a"}
    build_pages(InMemoryStore([*calm, calm[-1].model_copy(update=pair)]), tmp_path / "site", Registry())
    with watched(browser) as page:
        open_case(page, tmp_path / "site")
        section = page.locator(f"#{first_series(tmp_path / 'site')}")
        assert "3 values." in (section.locator(".plot").first.get_attribute("aria-label") or "")
        figures = section.locator("details.figures").first
        unfold(figures)
        assert figures.locator("tbody tr").count() == 4
        section.locator(".plot").first.focus()
        section.locator(".plot").first.press("End")
        assert (section.locator(".reading").first.text_content() or "").startswith(calm[-1].began[:10])


def test_a_chart_is_read_and_opened_by_keyboard(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_case(page, seeded_pages)
        section = page.locator(f"#{first_series(seeded_pages)}")
        plot, reading = section.locator(".plot").first, section.locator(".reading").first
        label, days = plot.get_attribute("aria-label") or "", reading.text_content() or ""
        assert "tokens/s/device" in label and "40 values" in label
        assert days.split() == ["2026-10-01", "to", "2026-11-09"]
        plot.focus()
        for key, day in (
            ("Home", "2026-10-01"),
            ("ArrowRight", "2026-10-02"),
            ("End", "2026-11-09"),
            ("ArrowLeft", "2026-11-08"),
        ):
            plot.press(key)
            text = reading.text_content() or ""
            assert text.startswith(f"{day} 01:30") and "tokens/s/device, valid," in text, key
        plot.press("Enter")
        page.wait_for_selector("#run[data-drawn]")
        assert "20261108T013000Z" in (page.locator("h1").text_content() or "")
        page.go_back()
        page.wait_for_selector("section[data-drawn]")
        assert page.url.endswith(f"#{first_series(seeded_pages)}")


def test_the_axis_says_where_it_starts(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_case(page, seeded_pages)
        chart = page.locator(f"#{first_series(seeded_pages)} .chart").first
        low = f"""[...levelfield.charts.drawn.keys()].find(u =>
            u.root.closest('section').id === '{first_series(seeded_pages)}').scales.y.min"""
        axis = chart.locator(".axis")
        assert "not start" in (axis.text_content() or "") and page.evaluate(low) > 100
        chart.locator(".zero").click()
        assert "not start" not in (axis.text_content() or "") and page.evaluate(low) == 0
        assert chart.locator(".zero").get_attribute("aria-pressed") == "true"


def test_a_case_shows_segments_statements_findings_and_every_run(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_case(page, seeded_pages)
        section = page.locator(f"#{first_series(seeded_pages)}")
        text = section.inner_text()
        for part in (
            "software.driver: 550.90.07 → 560.35.03",
            "seven quiet nights",
            "baseline accepted",
            "confirmed by 4 pairs",
            "−6.1 % (−6.8 % … −5.4 %)",
            "Throughput 2.1 %",
        ):
            assert part in text, part
        assert section.locator("canvas").count() == 5
        runs = section.locator("details")
        unfold(runs)
        assert runs.locator("tbody tr").count() == 40


def test_a_run_shows_its_figures_and_its_neighbours(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_run(page, seeded_pages)
        text = page.locator("main").inner_text()
        for part in (
            "valid",
            "checksums ok",
            "aligned",
            "Memory against the prediction",
            "63.50",
            "power_watts",
            "the host's processors ran",
            "software.driver",
            "--layout DP8TP1PP1",
            "run 40 of 40",
            "steps 11 to 40",
            "every layer within its limit",
        ):
            assert part in text, part
        page.get_by_role("link", name="← 2026-11-08 01:30").click()
        until(page, "document.querySelector('h1').textContent.startsWith('20261108')")
        page.go_back()
        until(page, "document.querySelector('h1').textContent.startsWith('20261109')")
        page.locator("a.language").click()
        page.wait_for_url("**/zh/run.html#**")
        page.wait_for_selector("#run[data-drawn]")
        assert "测量值" in page.locator("main").inner_text()


def test_a_run_shows_readings_over_time_and_each_rank(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_run(page, seeded_pages)
        charts = page.locator("figure.chart strong").all_inner_texts()
        expected = ["Loss", "Step time", "Step time by rank", "Step time", "Power", "Memory used", "Memory by rank"]
        assert charts == expected
        tables = {caption.inner_text(): caption for caption in page.locator("table caption").all()}
        ranks, readings, peaks = (
            next(at for at in tables if at.startswith(begin))
            for begin in ("Steps of each rank", "Readings of each", "Most memory of a rank")
        )
        cells = {name: tables[name].locator("xpath=..").locator("tbody tr").all_inner_texts() for name in tables}
        assert [row.split("\t")[0] for row in cells[ranks]] == ["0", "5"]
        assert cells[ranks][0].endswith("0.00") and cells[ranks][1].endswith("2.00")
        figures = [["Power (W)", "0"], ["Power (W)", "1"], ["Memory used (GiB)", "0"], ["Memory used (GiB)", "1"]]
        assert [row.split("\t")[:2] for row in cells[readings]] == figures
        assert cells[readings][2].split("\t")[2:] == ["39.06", "43.68", "44.53"]
        assert len(cells[peaks]) == 8 and cells[peaks][7].split("\t") == ["7", "8.89", "54.79"]
        page.locator(".plot").nth(4).focus()
        page.keyboard.press("End")
        assert "device 0" in page.locator(".reading").nth(4).inner_text()
        ranges = "[...levelfield.charts.drawn.keys()].slice(3, 6).map((u) => [u.scales.x.min, u.scales.x.max].join())"
        assert len(set(page.evaluate(ranges))) == 1  # charts over time have one axis


def test_a_failed_run_says_why_and_an_unknown_one_too(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        page.goto(f"file://{seeded_pages}/index.html")
        slug = next(name for name in histories(seeded_pages) if name.startswith("gpt3-6-7b-torch-910b2"))
        page.goto(f"file://{seeded_pages}/run.html#{slug}/{run_of(page, slug, 9)}")
        page.wait_for_selector("#run[data-drawn]")
        text = page.locator("main").inner_text()
        for part in ("rank 3 was ended by signal 9", "is in no comparison", "finished no step"):
            assert part in text
        page.goto(f"file://{seeded_pages}/run.html#{slug}/nothing")
        page.get_by_text("This run is not in these pages").wait_for()
        page.goto(f"file://{seeded_pages}/run.html#../../x/%zz")
        page.get_by_text("This run is not in these pages").wait_for()
        page.goto(f"file://{seeded_pages}/run.html#x")
        page.get_by_text("No run is named").wait_for()


def test_hostile_texts_do_nothing_on_any_page(browser: Any, hostile_site: Path) -> None:
    with watched(browser) as page:
        for path in sorted(hostile_site.glob("*.html")):
            page.goto(f"file://{path}")
            assert page.locator("main").locator("img, script").count() == 0
        page.goto(f"file://{case_of(hostile_site)}")
        page.locator("section[data-series]").first.scroll_into_view_if_needed()
        page.wait_for_selector("section[data-drawn]")
        unfold(page.locator("details").first)
        page.locator("details a").first.click()
        page.wait_for_selector("#run[data-drawn]")
        text = page.locator("main").inner_text()
        for part in (
            "<img src=x onerror=alert(1)>",
            "</script><script>alert(1)</script>",
            "\\u202egnp.exe",
            "__proto__",
            "polluted",
            "javascript:alert(1)",
        ):
            assert part in text, part
        assert page.locator("main").locator("img, script").count() == 0
        assert page.evaluate("({}).polluted") is None
        assert set(page.locator("a").evaluate_all("all => all.map(a => a.protocol)")) == {"file:"}


def case_of(site: Path) -> Path:
    return next(site.glob("case-*.html"))


PIXELS = """(() => {
    const canvas = document.querySelector('canvas');
    const all = canvas.getContext('2d').getImageData(0, 0, 40, canvas.height).data;
    return [...all].filter((value, i) => i % 4 === 1 && all[i + 2] > 200);
})()"""
BRIGHT, DARK = f"Math.max(...{PIXELS}) > 150", f"Math.min(...{PIXELS}) < 110"


def test_dark_charts_can_be_read_and_paper_is_light(browser: Any, seeded_pages: Path) -> None:
    with watched(browser, color_scheme="dark") as page:
        open_run(page, seeded_pages)
        assert background(page) == (20, 24, 29)
        until(page, BRIGHT)  # the labels of the axes stand out of a dark page
        page.emulate_media(color_scheme="light")
        until(page, DARK)
        page.emulate_media(color_scheme="dark")
        until(page, BRIGHT)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        until(page, DARK)
        assert background(page) == (255, 255, 255)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def address(seeded_pages: Path) -> Iterator[str]:
    """Of a web server with the pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(seeded_pages))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_web_server_gives_the_same_pages(browser: Any, seeded_pages: Path, address: str) -> None:
    with watched(browser) as page:
        page.goto(address)
        page.locator("table.bars a").first.click()
        page.wait_for_selector("section[data-drawn] canvas")
        page.goto(f"{address}run.html#{first_series(seeded_pages)}/{run_of(page, first_series(seeded_pages), -1)}")
        page.wait_for_selector("#run[data-drawn] canvas")
        page.locator("a.language").click()
        page.wait_for_url("**/zh/run.html#**")
        page.wait_for_selector("#run[data-drawn] canvas")
        page.goto(f"{address}zh/")
        assert page.title().startswith("总览")


# As a browser with a window loads a page's icon; one without leaves it.
LOAD_ICON = "void (new Image().src = 'assets/icon.svg')"


@pytest.mark.thorough
def test_a_page_that_is_left_before_its_image_came_is_no_error(browser: Any, address: str) -> None:
    with watched(browser) as page:
        given_up: list[Any] = []
        page.on("requestfailed", lambda request: given_up.append(request.failure))
        page.route("**/icon.svg", lambda route: None)  # never answered
        page.goto(address)
        with page.expect_request("**/icon.svg"):
            page.evaluate(LOAD_ICON)
        page.goto(f"{address}zh/")
        assert given_up and set(given_up) == {GIVEN_UP}


@pytest.mark.parametrize("reason", ["failed", pytest.param("connectionreset", marks=pytest.mark.thorough)])
def test_a_request_that_fails_is_an_error(browser: Any, address: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=r"failed:.*icon\.svg:.net::ERR_"), watched(browser) as page:
        page.route("**/icon.svg", lambda route: route.abort(reason))
        page.goto(address)
        with page.expect_event("requestfailed"):
            page.evaluate(LOAD_ICON)
