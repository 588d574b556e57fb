"""Charts as files, saved in a browser: from a file and with the pages' policy, as SVG, PNG and CSV."""

from __future__ import annotations

import base64
import csv
import io
import re
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from compared_records import repeats
from levelfield.catalog.registry import Registry
from levelfield.pages.page_building import build_pages
from levelfield.pages.page_rendering import POLICY
from levelfield.pages.series_history import InMemoryStore
from page_visits import first_series, open_case, open_run, watched
from seeded_nights import SeededNights

SVG = "{http://www.w3.org/2000/svg}"


def saved(page: Any, place: Any, kind: str) -> tuple[str, bytes]:
    """The name and the content of the file that a chart's button gives."""
    with page.expect_download() as download:
        place.locator(".save").first.get_by_role("button", name=kind).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def table_of(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))


def test_a_chart_over_time_is_saved_with_its_marks(browser: Any, seeded_pages: Path) -> None:
    records = [r for r in SeededNights().records() if r.series.label.startswith("gpt3_6.7B:torch:H100")]
    with watched(browser, color_scheme="dark") as page:
        open_case(page, seeded_pages)
        slug = first_series(seeded_pages)
        section = page.locator(f"#{slug}")
        name, picture = saved(page, section, "SVG")
        assert name == f"{slug}_tokens.svg"
        root = ElementTree.fromstring(picture)
        texts = [text.text for text in root.iter(f"{SVG}text")]
        assert texts[:2] == ["Throughput, tokens/s/device", records[0].series.label]
        assert {"4,200", "4,000"} <= set(texts), "the numbers of the axes"
        marks = [path for path in root.iter(f"{SVG}path") if path.get("fill") == "#1f5fbf"]
        assert len(marks) == len(records) == 40  # every night, in the colours of paper on a dark screen, too
        assert not [element for element in root.iter() if "class" in element.attrib or "style" in element.attrib]
        name, content = saved(page, section, "CSV")
        head, *lines = table_of(content)
        assert name == f"{slug}_tokens.csv" and head[:3] == ["When", "Throughput (tokens/s/device)", "Run"]
        speeds = [record.tokens_per_second_per_device or 0.0 for record in records]
        assert [float(line[1]) for line in lines] == pytest.approx(speeds, abs=0.006)
        assert [line[2] for line in lines] == [record.run_id for record in records]


def test_a_png_is_the_picture_at_twice_the_pixels(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_run(page, seeded_pages)
        figure = page.locator("figure.chart").first
        _, picture = saved(page, figure, "SVG")
        name, pixels = saved(page, figure, "PNG")
        width, height = struct.unpack(">II", pixels[16:24])
        root = ElementTree.fromstring(picture)
        assert pixels.startswith(b"\x89PNG") and name.endswith("_torch_nvidia_000027_loss.png")
        assert (width, height) == tuple(2 * int(float(root.get(side, ""))) for side in ("width", "height"))
        shades = page.evaluate(SHADES, base64.b64encode(pixels).decode())
        assert shades > 20, "lines and letters, and not an empty sheet"


SHADES = """async text => {
    const image = await createImageBitmap(new Blob([Uint8Array.from(atob(text), letter => letter.charCodeAt())]));
    const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
    context.drawImage(image, 0, 0);
    const all = context.getImageData(0, 0, image.width, image.height).data;
    return new Set(all.filter((value, i) => i % 4 === 0)).size;
}"""


@pytest.mark.thorough
def test_a_static_figure_is_saved_with_the_look_of_the_style_sheet(browser: Any, tmp_path: Path) -> None:
    one = next(SeededNights(series=1, nights=1, faults=False).records())
    more = one.series.model_copy(update={"devices": 16, "nodes": 2})
    both = [one, one.model_copy(update={"run_id": "two", "series": more, "tokens_per_second_per_device": 4000.0})]
    build_pages(InMemoryStore(both), tmp_path / "site", Registry())
    with watched(browser) as page:
        page.goto(f"file://{next((tmp_path / 'site').glob('case-*.html'))}")
        figure, tokens = page.locator("figure.of-speed-up"), page.locator("figure.of-tokens")
        assert figure.is_visible() and not tokens.is_visible()
        name, picture = saved(page, figure, "SVG")
        root = ElementTree.fromstring(picture)
        (line,) = root.iter(f"{SVG}polyline")
        stroke = re.findall(r"\d+", line.get("stroke", ""))
        assert (line.get("fill"), stroke) == ("none", ["31", "95", "191"])
        assert name.startswith("gpt3-6-7b-") and name.endswith("_torch_H100-SXM5-80GB_scaling-1_speed-up.svg")
        _, content = saved(page, figure, "CSV")
        head, *lines = table_of(content)
        assert head[0] == "Devices" and [line[0][:2].strip() for line in lines] == ["8", "16"]
        assert float(lines[1][2]) == 4000.0 and float(lines[0][3]) == 1.0
        page.get_by_role("radio", name="tokens/s of all devices").check()
        assert tokens.is_visible() and not figure.is_visible()
        root = ElementTree.fromstring(saved(page, tokens, "SVG")[1])
        least = (one.tokens_per_second_per_device or 0) * 8 / 1000
        assert f"{least:.3g}k" in [text.text for text in root.iter(f"{SVG}text")]  # an axis of tokens


def test_the_bars_of_the_first_page_are_saved(browser: Any, tmp_path: Path) -> None:
    sides = [*repeats(1000, 1010, 990), *repeats(400, 404, 396, first=10, framework="@<jax>")]
    other = [
        *repeats(1000, 1010, 990, first=20, case="h"),
        *repeats(400, 404, 396, first=30, framework="@<jax>", case="h"),
    ]
    build_pages(InMemoryStore([*sides, *other]), tmp_path / "site", Registry())
    with watched(browser, color_scheme="dark") as page:
        page.goto(f"file://{tmp_path}/site/index.html")
        assert page.locator(".save").count() == page.locator("table.bars").count() == 3
        section = page.locator("section.training").first
        name, picture = saved(page, section, "SVG")
        root = ElementTree.fromstring(picture)
        assert name.startswith("gpt-") and name.endswith("_tokens.svg")
        title, training, *bar_texts = [text.text or "" for text in root.iter(f"{SVG}text")]
        assert title == "Throughput, tokens/s/device" and training.split() == ["gpt", "1x1", "fp32", "smoke"]
        assert [bar_texts[place].partition(" ")[0] for place in (0, 1, 2)] == ["torch", "1,000.0", "@<jax>"]
        assert "0.40 0.39" in bar_texts[3]
        bars = [float(bar.get("width", "")) for bar in root.iter(f"{SVG}rect") if bar.get("height") == "10"]
        assert bars[1] / bars[0] == pytest.approx(0.4, abs=0.005)
        _, content = saved(page, section, "CSV")
        head, *lines = table_of(content)
        assert head[1] == "framework" and [line[1] for line in lines] == ["torch", "'@<jax>"]
        assert [float(line[3]) for line in lines] == pytest.approx([999.9667, 399.9867], rel=1e-6), "by hand: of three"
        assert float(lines[1][6]) == pytest.approx(0.4, rel=1e-6) and lines[1][9] == "lower"
        _, means = saved(page, page.locator("main"), "CSV")
        assert [line[:2] for line in table_of(means)][1] == ["torch", "1"]
        page.goto(f"file://{tmp_path}/site/by-mfu.html")
        assert saved(page, page.locator("section.training").first, "PNG")[1].startswith(b"\x89PNG")


def test_a_text_of_a_run_is_no_formula_in_a_csv(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_case(page, seeded_pages)
        page.evaluate("""() => {
            const place = levelfield.el('div', {id: 'mine'});
            document.querySelector('main').prepend(place);
            const values = ['=1+1', '@x', '+a', '-3.5', 'a"b,\\nc', ' =2'];
            const lines = [{name: 'l', values: [0.1 + 0.2, -2, null, 1e-9, NaN, 7]}];
            const chart = {name: 'n', unit: 'u', file: '../a b', whose: '', x: [1, 2, 3, 4, 5, 6], describe: () => ''};
            levelfield.charts.add(place, {...chart, lines, columns: [{name: '=n', values}]});
        }""")
        name, content = saved(page, page.locator("#mine"), "CSV")
        assert name == "a-b.csv"
        assert table_of(content) == [
            ["step", "l (u)", "'=n"],
            ["1", "0.3", "'=1+1"],
            ["2", "-2", "'@x"],
            ["3", "", "'+a"],
            ["4", "1e-9", "-3.5"],
            ["5", "", 'a"b, c'],
            ["6", "7", "'=2"],
        ]


@pytest.mark.thorough
def test_chinese_names_are_told_to_a_spreadsheet(browser: Any, seeded_pages: Path) -> None:
    with watched(browser) as page:
        open_case(page, seeded_pages, "zh/")
        name, content = saved(page, page.locator(f"#{first_series(seeded_pages)}"), "CSV")
        assert content.startswith("\ufeff时间".encode()) and name.isascii()


def test_the_policy_allows_pictures_of_the_page_itself_and_no_others(browser: Any, seeded_pages: Path) -> None:
    """Each address of a picture is tried in the browser: `blob:` is needed for the PNG, and nothing more is allowed."""
    assert POLICY.count(":") == 1
    assert ["img-src", "'self'", "blob:"] in [directive.split() for directive in POLICY.split(";")]
    tried = """async kind => {
        const text = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>';
        const image = new Image();
        image.src = kind === 'blob' ? URL.createObjectURL(new Blob([text], {type: 'image/svg+xml'}))
            : kind === 'data' ? 'data:image/svg+xml,' + encodeURIComponent(text) : 'http://127.0.0.1:9/a.png';
        return image.decode().then(() => true, () => false);
    }"""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"file://{seeded_pages}/guide.html")
    assert [page.evaluate(tried, kind) for kind in ("blob", "data", "http")] == [True, False, False]
    context.close()
