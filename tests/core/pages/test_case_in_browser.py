"""The page of a case in a browser: groups, parts enlarged together, words on charts, pairs of builds, and paper."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from compared_records import other_use, record, repeats, with_result
from levelfield.catalog.registry import Registry
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from page_visits import case_page, first_series, histories, open_case, open_run, rows, unfold, watched
from seeded_nights import SeededNights
from test_saved_charts import SVG, saved, table_of

ROWS = "[...document.querySelectorAll('details.group > summary')].map(s => s.innerText.replace(/\\s+/g, ' '))"
RANGES = """kind => [...levelfield.charts.drawn].filter(([u, chart]) => chart.spec.axis === kind)
    .map(([u]) => [u.scales.x.min, u.scales.x.max].join())"""


def test_series_are_folded_into_groups_that_the_address_opens(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        page.goto(f"file://{case_page(seeded_pages)}")
        page.wait_for_selector("details.group")
        chips = page.evaluate(ROWS)
        assert [row.split(" 2 series")[0].removeprefix("▸ ") for row in chips] == [
            "910B2", "H100-SXM5-80GB", "MI300X", "MLU590-M9",
        ]  # fmt: skip
        for part in ("5,369.6 tokens/s/device", "megatron · H100", "regression 1"):
            assert part in chips[1]
        assert page.locator("canvas").count() == 0 and page.locator("section[data-series]:visible").count() == 0
        assert page.evaluate("document.getElementById('all-series').offsetHeight") < 500
        page.get_by_role("button", name="framework").press("Enter")
        assert [row.split(" ")[-8] for row in page.evaluate(ROWS)] and len(page.evaluate(ROWS)) == 2
        page.locator("details.group summary").nth(1).press("Enter")
        page.wait_for_selector("section[data-drawn] canvas")
        page.wait_for_url("**#?by=framework&open=torch")
        assert page.locator("section[data-series]:visible").count() == 4
        page.reload()
        page.wait_for_selector("section[data-drawn] canvas")
        assert page.locator("details.group[open]").count() == 1 and len(page.evaluate(ROWS)) == 2
        page.get_by_role("button", name="Fold all").click()
        assert page.locator("section[data-series]:visible").count() == 0
        page.evaluate("hash => { location.hash = hash }", first_series(seeded_pages))
        page.wait_for_selector(f"#{first_series(seeded_pages)}[data-drawn] canvas")
        assert page.locator("details.group[open]").count() == 1


@pytest.mark.thorough
def test_few_series_need_no_groups(browser: Any, tmp_path: Path) -> None:
    build_pages(InMemoryStore(SeededNights(series=2, nights=2, faults=False).records()), tmp_path / "site", Registry())
    with watched(browser) as page:
        page.goto(f"file://{next((tmp_path / 'site').glob('case-*.html'))}")
        page.locator("section[data-series]").first.scroll_into_view_if_needed()
        page.wait_for_selector("section[data-drawn] canvas")
        assert page.locator("details.group, .grouping").count() == 0


@pytest.mark.parametrize(
    ("language", "word"),
    [pytest.param("", "valid (disturbed)", marks=pytest.mark.thorough), ("zh/", "有效（受干扰）")],
)
def test_a_disturbed_run_has_the_word_in_the_table_of_runs_and_on_its_page(
    browser: Any, tmp_path: Path, language: str, word: str
) -> None:
    runs = [with_result(record(n, 1000), other_use=other_use(cores, 2)) for n, cores in ((1, 0.0), (2, 1.72))]
    build_pages(InMemoryStore(runs), tmp_path / "site", Registry())
    (case,) = (tmp_path / "site" / language).glob("case-*.html")
    with watched(browser) as page:
        page.goto(f"file://{case}")
        section = page.locator("section[data-series]").first
        section.scroll_into_view_if_needed()
        page.wait_for_selector("section[data-drawn]")
        unfold(section.locator("details").last)
        words = section.locator("details").last.locator("tbody tr span.word.w-valid-disturbed")
        assert words.all_inner_texts() == [word]
        page.goto(f"file://{case.parent}/run.html#{section.get_attribute('id')}/{runs[1].run_id}")
        page.wait_for_selector("h1.id")
        assert page.locator("span.word").first.inner_text() == word


def test_charts_of_one_axis_are_enlarged_together_and_the_address_keeps_it(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_case(page, seeded_pages)
        slug = first_series(seeded_pages)
        plot = page.locator(f"#{slug} .plot").first
        whole = page.evaluate(RANGES, "time")
        plot.focus()
        plot.press("End")
        plot.press("+")
        (enlarged,) = set(page.evaluate(RANGES, "time"))
        assert enlarged not in whole and len(whole) >= 5
        assert "?time=2026-10-30T" in page.url and f"#{slug}" in page.url
        plot.press("Home")
        (moved,) = set(page.evaluate(RANGES, "time"))
        assert float(moved.split(",")[0]) < float(enlarged.split(",")[0]), "the cursor takes the part with it"
        page.reload()
        page.wait_for_selector(f"#{slug}[data-drawn] canvas")
        (again,) = set(page.evaluate(RANGES, "time"))
        ends = [[float(end) for end in part.split(",")] for part in (again, moved)]
        assert ends[0] == pytest.approx(ends[1], abs=60), "to a minute"
        page.locator(f"#{slug} .all").first.click()
        assert page.evaluate(RANGES, "time")[: len(set(whole))] != [again] and "time=" not in page.url
        assert page.locator(".all:visible").count() == 0


def test_a_pointer_enlarges_and_a_double_click_shows_all(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_run(page, seeded_pages)
        steps, seconds = page.evaluate(RANGES, "steps"), page.evaluate(RANGES, "seconds")
        over = page.locator(".u-over").first
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
        page.mouse.up()
        page.wait_for_url(lambda url: "?steps=" in url)
        assert len(set(page.evaluate(RANGES, "steps"))) == 1 and page.evaluate(RANGES, "steps") != steps
        assert page.evaluate(RANGES, "seconds") == seconds, "another axis stays"
        low, high = (float(end) for end in page.url.split("steps=")[1].split(".."))
        assert 10 < low < 12 and 19 < high < 22
        over.dblclick()
        page.wait_for_url(lambda url: "steps" not in url)
        assert page.evaluate(RANGES, "steps") == steps


def thorough(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)


# An attack, and two numbers that only their order makes wrong.
@pytest.mark.parametrize(
    "part",
    [thorough("nonsense"), "9..3", thorough(".."), thorough("2026-10-08.."), thorough("1e999..2"), "<img src=x>"],
)
def test_an_address_that_names_no_part_shows_all(browser: Any, seeded_pages: Path, part: str) -> None:
    with watched(browser) as page:
        page.goto(f"file://{case_page(seeded_pages)}#{first_series(seeded_pages)}?time={part}&by={part}&open={part}")
        page.wait_for_selector(f"#{first_series(seeded_pages)}[data-drawn] canvas")
        assert page.locator(".all:visible").count() == 0 and len(page.evaluate(ROWS)) == 4


def test_a_chart_says_in_words_what_it_marks(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_case(page, seeded_pages)
        section = page.locator(f"#{first_series(seeded_pages)}")
        root = ElementTree.fromstring(saved(page, section, "SVG")[1])
        texts = [text.text or "" for text in root.iter(f"{SVG}text")]
        words = {"driver changed", "baseline accepted", "note", "regression"}
        assert words <= set(texts) and not {"C1", "E1"} & set(texts)
        rings = [p for p in root.iter(f"{SVG}path") if p.get("stroke") == "#c01c28" and p.get("fill") == "none"]
        assert len(rings) == 1, "the night of the regression"
        head, *lines = table_of(saved(page, section, "CSV")[1])
        assert [line[head.index("Gate")] for line in lines[-2:]] == ["", "regression"]
        unfold(section.locator("details.figures"))
        table = section.locator("details.figures tbody tr")
        assert "regression" in table.nth(0).inner_text() and "regression" not in table.nth(1).inner_text()
        assert "driver changed" in section.inner_text()


def pairs_site(folder: Path) -> tuple[list[Any], Path]:
    """A series of three nights, and four pairs in the last of them of which B is 6 % slower."""
    calm = list(SeededNights(series=1, nights=3, faults=False).records())
    pairs = [
        calm[-1].model_copy(
            update={
                "run_id": f"pair-{number}-{arm}",
                "began": f"2026-10-03T0{3 + number}:{10 if arm == 'a' else 40}:00Z",
                "purpose": f"confirm-{arm}",
                "tokens_per_second_per_device": speed,
            }
        )
        for number in range(4)
        for arm, speed in (("a", 4200.0 + number), ("b", 0.94 * (4200.0 + number)))
    ]
    finding = {
        "series": InMemoryStore(calm).series()[0].digest, "label": "a", "word": "regression", "pairs": 4,
        "figure": "tokens_per_second_per_device", "change": -0.06, "low": -0.07, "high": -0.05,
        "run_id": calm[-1].run_id,
    }  # fmt: skip
    build_pages(InMemoryStore([*calm, *pairs], findings={"2026-10-03": [finding]}), folder / "site", Registry())
    return pairs, folder / "site"


def test_pairs_have_a_chart_of_their_own_with_the_ruling(browser: Any, tmp_path: Path) -> None:
    pairs, site = pairs_site(tmp_path)
    with watched(browser) as page:
        open_case(page, site)
        chart = page.locator(".pairs .chart")
        assert "4 values." in (chart.locator(".plot").get_attribute("aria-label") or "")
        assert "3 values." in (page.locator(".plot").first.get_attribute("aria-label") or ""), (
            "the trend has none of them"
        )
        name, content = saved(page, page.locator(".pairs"), "CSV")
        head, *lines = table_of(content)
        assert name.endswith("_tokens_pairs.csv") and head[1].startswith("Throughput, ") and head[1].endswith("(%)")
        assert [float(line[1]) for line in lines] == pytest.approx([-6.0] * 4)
        assert [line[2:6] for line in lines] == [
            ["2026-10-03", pairs[2 * i].run_id, pairs[2 * i + 1].run_id, "regression"] for i in range(4)
        ]
        root = ElementTree.fromstring(saved(page, page.locator(".pairs"), "SVG")[1])
        assert "10-03 regression" in [text.text for text in root.iter(f"{SVG}text")]
        bands = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") == "#eef3fb"]
        assert len(bands) == 1  # the interval of the ruling
        chart.locator(".plot").focus()
        chart.locator(".plot").press("Home")
        reading = chart.locator(".reading").text_content() or ""
        assert reading.startswith("Pair 1, 2026-10-03") and reading.endswith("−6.00 %")
        chart.locator(".plot").press("Enter")
        page.wait_for_url("**/run.html#**")
        assert unquote(page.url).endswith("/pair-0-b")


def on_paper(page: Any) -> None:
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")


def test_paper_has_every_open_chart_and_no_button(browser: Any, seeded_pages: Path) -> None:
    with watched(browser, color_scheme="dark") as page:
        page.goto(f"file://{case_page(seeded_pages)}#?by=framework&open=torch&open=megatron")
        page.wait_for_load_state("load")  # for which the data of what is open are waited for
        on_paper(page)
        assert page.locator("section[data-drawn]").locator(".for-paper svg").count() == 8 * 5
        assert "drawn when" not in page.locator("main").inner_text()
        for kind in ("button:not(.sort)", ".plot", "input", "nav"):
            assert page.locator(f"{kind}:visible").count() == 0
        assert page.locator(".for-paper path[stroke='#1f5fbf']").count() > 1000  # in the colours of paper
        page.emulate_media(media="screen")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator(".for-paper").count() == 0 and page.locator(".plot:visible").count() == 8 * 5


SPANS = "table => [...table.tBodies[0].rows[1].cells].reduce((sum, cell) => sum + cell.colSpan, 0)"


def test_a_wide_table_is_printed_in_parts_with_every_cell(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        page.goto(f"file://{seeded_pages}/guide.html")
        page.evaluate("""() => {
            const place = levelfield.el('div', {id: 'mine'});
            document.querySelector('main').prepend(place);
            const columns = Array.from({length: 40}, (_, i) => `column ${i}`);
            const all = [0, 1].map((row) => columns.map((_, i) => `cell_${row}_${i}_of_a_wide_table`));
            const table = levelfield.tables.add(place, 'c', columns, all);
            table.tBodies[0].rows[1].cells[38].remove();
            table.tBodies[0].rows[1].cells[37].colSpan = 2;
        }""")
        on_paper(page)
        parts = page.locator("#mine .for-paper table")
        assert parts.count() > 3 and page.locator("#mine .scroll:visible").count() == 0
        room = page.evaluate("document.querySelector('main').clientWidth")
        assert all(part.bounding_box()["width"] <= room for part in parts.all())
        heads = [part.locator("thead th").all_inner_texts() for part in parts.all()]
        assert {head[0] for head in heads} == {"column 0"} and "(2 / " in parts.nth(1).locator("caption").inner_text()
        assert [name for head in heads for name in head[1:]] == [f"column {i}" for i in range(1, 40)]
        first = [part.locator("tbody tr").nth(0).locator("td").all_inner_texts()[1:] for part in parts.all()]
        assert [cell for row in first for cell in row] == [f"cell_0_{i}_of_a_wide_table" for i in range(1, 40)]
        assert [part.evaluate(SPANS) for part in parts.all()] == [len(head) for head in heads]


@pytest.mark.thorough
def test_every_page_fits_on_paper(browser: Any, seeded_pages: Path) -> None:
    with watched(browser, viewport={"width": 960, "height": 700}) as page:
        for name in ("index.html", "published.html", "guide.html", "nodes.html"):
            page.goto(f"file://{seeded_pages}/{name}")
            on_paper(page)
            beyond = page.evaluate(
                """() => {
                    const edge = document.querySelector('main').getBoundingClientRect().right + 1;
                    const all = [...document.querySelectorAll('td, th, p')]
                        .filter((each) => each.getClientRects().length);
                    return all.filter((each) => each.getBoundingClientRect().right > edge)
                        .map((each) => each.innerText);
                }"""
            )
            assert beyond == [] and len(rows(page)) > 0, name


@pytest.mark.thorough
def test_the_table_of_a_case_fits_a_screen_of_1120_pixels(browser: Any, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"scale": "smoke", "precision": "fp32", "threads": 2, "joules": None}
    runs = [*repeats(1000, 1010, **changes), *repeats(400, first=10, framework="jax", **changes)]
    build_pages(InMemoryStore(runs), tmp_path, Registry())
    with watched(browser, viewport={"width": 1120, "height": 900}) as page:
        page.goto(f"file://{next(tmp_path.glob('case-*.html'))}")
        heads = page.locator("table").first.locator("thead th").all_inner_texts()
        assert not [head for head in heads if "Last night" in head or "Energy" in head]  # nothing is in them
        needed, available = page.locator(".scroll").first.evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert needed <= available


@pytest.mark.parametrize(
    ("device_is", "label"),
    [("host share", "Whole machine with all programs, peak; not of this run"), thorough("card", "Device used, peak")],
)
def test_the_memory_of_a_whole_machine_is_not_called_a_runs(
    browser: Any, tmp_path: Path, device_is: str, label: str
) -> None:
    run = record(1, device_is=device_is)
    build_pages(InMemoryStore([run]), tmp_path, Registry())
    with watched(browser) as page:
        page.goto(f"file://{tmp_path}/index.html")
        (slug,) = histories(tmp_path)
        page.goto(f"file://{tmp_path}/run.html#{slug}/{run.run_id}")
        page.wait_for_selector("#run[data-drawn]")
        cells = page.locator("#run td").all_inner_texts()
        labels = [cell for cell in cells if cell.startswith(("Whole machine", "Device used"))]
        assert labels == [label] and cells[cells.index(label) + 1] == "1.00"
