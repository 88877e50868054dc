"""The report in a real browser: it asks for nothing, sorts, filters, follows the map, and reads without JavaScript."""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from giveaway import audit, report, validate
from giveaway.records import Head, ScoreTable, Signals
from tests.conftest import made_arrays
from tests.reporting.test_answers import QUESTIONS

pytestmark = pytest.mark.slow
HOSTILE = (
    "<script>window.broken = 1</script>",
    "</script><script>window.broken = 2</script>",
    "\"><img src=x onerror='window.broken = 3'>",
    "{{ 7 * 7 }}",
    "=1+1",
    "\u202egnol\u202c",
    "null\x00byte",
    "🙂 emoji",
    "L" * 900,
)


def _missing() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: no test in a browser"
    return None if shutil.which("chromium") else "no chromium here: no test in a browser (apt-get install chromium)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    missing = _missing()
    if missing and os.environ.get("GIVEAWAY_BROWSER") == "required":
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page with everything it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, *, scripts: bool = True, width: int = 1400, maps: bool = True) -> None:
        self.context = browser.new_context(java_script_enabled=scripts, viewport={"width": width, "height": 900})
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.page.goto(path.as_uri())
        if scripts and maps:
            self.page.click("#map > summary")
            self.page.wait_for_selector("html[data-maps=ready]")

    def shown(self, column: str) -> list[str]:
        """Cells of a column in the rows that are shown, in their order."""
        place = self.page.eval_on_selector(
            f'#listing th[data-column="{column}"]', "head => Array.from(head.parentNode.cells).indexOf(head)"
        )
        return self.page.eval_on_selector_all(
            "#listing tbody tr",
            f"rows => rows.filter(row => row.getClientRects().length).map(row => row.cells[{place}].textContent)",
        )

    def drag(self, low: tuple[float, float], high: tuple[float, float]) -> None:
        """A box in the first map, in parts of its frame."""
        frame = self.page.locator("#maps .bk-Canvas").first
        frame.scroll_into_view_if_needed()
        box = frame.bounding_box()
        places = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in (low, high)]
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        self.page.mouse.move(*places[1], steps=5)
        self.page.mouse.up()
        self.page.wait_for_timeout(200)


@pytest.fixture(scope="module")
def table() -> ScoreTable:
    arrays = made_arrays("classes", n=400, d=6)
    arrays["ids"] = np.array([f"case-{i:03d}" for i in range(400)])
    head = Head(**arrays, l2=0.5, inputs=np.maximum(arrays["features"], 0.0))
    return audit(head)


@pytest.fixture(scope="module")
def path(table: ScoreTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report") / "report.html"
    report(table, place, top=60, show_records=True)
    return place


@pytest.fixture
def opened(browser: Any, path: Path) -> Iterator[Opened]:
    page = Opened(browser, path)
    page.page.click("#rest > summary")
    yield page
    page.context.close()
    assert page.errors == []


def test_nothing_is_asked_for_and_nothing_goes_wrong(opened, path):
    opened.page.mouse.wheel(0, 4_000)
    opened.page.wait_for_timeout(300)
    assert [url for url in opened.requests if not url.startswith("data:")] == [path.as_uri()]
    assert opened.errors == []


def test_sorting_by_mouse_and_by_keyboard(opened, table):
    order = table.order()[:60]
    assert opened.shown("id") == [str(name) for name in table.ids[order]]
    opened.page.click('#listing th[data-column="class"] button')
    by_class = order[np.argsort(-table["class"][order], kind="stable")]
    assert opened.shown("id") == [str(name) for name in table.ids[by_class]]
    assert opened.page.get_attribute('#listing th[data-column="class"]', "aria-sort") == "descending"
    assert opened.page.get_attribute('#listing th[data-column="rank"]', "aria-sort") == "none"
    opened.page.focus('#listing th[data-column="id"] button')
    opened.page.keyboard.press("Enter")
    assert opened.shown("id") == sorted(str(name) for name in table.ids[order])
    opened.page.keyboard.press("Space")
    assert opened.shown("id") == sorted((str(name) for name in table.ids[order]), reverse=True)
    assert opened.page.text_content("#told") == "sorted by id, largest first"


def test_filtering_tells_how_many_are_left(opened, table):
    first = str(table.ids[table.order()[0]])
    opened.page.fill("#search", first)
    near = [str(table.ids[row]) for row in table.order()[:60] if first in table["nearest"][row]]
    assert opened.shown("id") == [first, *near]
    assert opened.page.text_content("#told") == f"{1 + len(near)} of 60 rows shown"
    opened.page.fill("#search", "no such record")
    assert opened.shown("id") == []
    opened.page.click("#clear")
    assert len(opened.shown("id")) == 60


def test_what_is_selected_in_the_map_is_what_the_table_lists(opened, table):
    opened.drag((0.15, 0.12), (0.99, 0.99))
    chosen = opened.page.evaluate("() => Array.from(giveawaySource.selected.indices)")
    assert len(chosen) > 300
    assert len(opened.shown("id")) <= 60 + 200
    assert "(the first " in opened.page.text_content("#told")
    opened.page.click("#clear")
    opened.drag((0.86, 0.12), (0.99, 0.25))
    chosen = opened.page.evaluate("() => Array.from(giveawaySource.selected.indices, i => giveawaySource.data.row[i])")
    assert 0 < len(chosen) < 200, len(chosen)
    assert sorted(opened.shown("id")) == sorted(str(table.ids[row]) for row in chosen)
    ranks = table.rank()
    assert sorted(map(int, opened.shown("rank"))) == sorted(int(ranks[row]) for row in chosen)
    lower = sum(ranks[row] > 60 for row in chosen)
    assert f"{len(chosen)} selected in the map" in opened.page.text_content("#told")
    assert (f"{lower} of them from further down" in opened.page.text_content("#told")) is bool(lower)
    opened.page.click("#clear")
    assert len(opened.shown("id")) == 60
    assert opened.page.evaluate("() => giveawaySource.selected.indices.length") == 0


def test_a_row_shows_itself_in_the_map(opened, table):
    row = int(table.order()[2])
    button = opened.page.locator(f'tr[data-row="{row}"] button.mark')
    button.focus()
    opened.page.keyboard.press("Enter")
    chosen = opened.page.evaluate("() => Array.from(giveawaySource.selected.indices, i => giveawaySource.data.row[i])")
    assert chosen == [row]
    assert button.get_attribute("aria-pressed") == "true"
    assert len(opened.shown("id")) == 60


def test_the_page_reads_without_javascript(browser, path, table):
    opened = Opened(browser, path, scripts=False)
    assert len(opened.page.locator("#listing tbody tr:visible").all()) == 20
    for name in ("rest", "map", "read"):
        opened.page.click(f"#{name} > summary")
    text = opened.page.inner_text("body")
    for words in (*QUESTIONS, "The maps need JavaScript", "how wrongly the other records predict it", "Reviewed by"):
        assert words in text
    for row in table.order()[:60]:
        assert str(table.ids[row]) in text
    assert not opened.page.is_visible("#search")
    assert not opened.page.locator("button.mark").first.is_visible()
    assert opened.requests == [path.as_uri()] or all(u.startswith("data:") for u in opened.requests[1:])
    opened.context.close()


FOLDER_PAGES = ("report.html", "summary.html")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit with long names, pictures, many classes, two kinds of subgroups, copies, and a validation."""
    rng, n = np.random.default_rng(0), 600
    arrays = made_arrays("classes", n=n, d=6)
    arrays["ids"] = np.array([f"a-patient-with-a-very-long-identifier-{i:06d}" for i in range(n)])
    arrays["features"][1:40:2] = arrays["features"][:40:2]
    arrays["targets"][1:40:2] = arrays["targets"][:40:2]
    head = Head(**arrays, l2=0.5, inputs=rng.random((n, 3, 8, 8)))
    table = audit(head)
    members = np.stack([rng.permutation(np.arange(16) < 8) for _ in range(n)], axis=1)
    phi = rng.normal(size=members.shape) + 5 * members + 0.01 * table.rank("loss")
    wards = {"ward": rng.integers(0, 40, n).astype(str), "postcode of the practice": rng.integers(0, 12, n).astype(str)}
    place = tmp_path_factory.mktemp("whole") / "audit"
    found = validate(Signals(phi, members, kind="phi"), table)
    report(table, place, head=head, validation=found, title="A title " * 12, subgroups=wards, show_records=True)
    return place


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("name", FOLDER_PAGES)
def test_nothing_scrolls_sideways(browser, folder, name, width):
    opened = Opened(browser, folder / name, width=width, maps=False)
    for fold in opened.page.locator("details:not(.more-numbers) > summary").all():
        fold.click()
    opened.page.wait_for_timeout(500)
    wide = opened.page.evaluate(
        """() => Array.from(document.querySelectorAll("html, body, body *")).filter(node =>
          node.scrollWidth > node.clientWidth + 1 && node.clientWidth && !node.closest("#maps")
          && getComputedStyle(node).display !== "inline").map(node => node.outerHTML.slice(0, 80))"""
    )
    assert wide == [], "\n".join(wide)
    sizes = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert opened.page.evaluate(sizes) == [width, width]
    opened.context.close()


@pytest.mark.parametrize("name", FOLDER_PAGES)
def test_the_first_screen_answers_six_questions_in_order(browser, folder, name):
    opened = Opened(browser, folder / name, maps=False)
    heads = opened.page.locator(".answers h2").all()
    assert [head.inner_text() for head in heads] == QUESTIONS
    places = [head.bounding_box()["y"] for head in heads]
    assert places == sorted(places)
    box = opened.page.locator(".answers").bounding_box()
    assert box["y"] + box["height"] <= 900
    opened.context.close()


def test_twenty_rows_then_the_rest(browser, folder):
    opened = Opened(browser, folder / "report.html", maps=False)
    assert opened.shown("rank") == [str(rank) for rank in range(1, 21)]
    assert opened.page.text_content("#told") == "20 of 100 rows shown"
    opened.page.click('#listing th[data-column="rank"] button')  # the last of the hundred come first
    assert opened.shown("rank") == [str(rank) for rank in range(100, 80, -1)]
    opened.page.click("#rest > summary")
    assert len(opened.shown("rank")) == 100
    opened.context.close()


@pytest.mark.parametrize("name", FOLDER_PAGES)
def test_it_prints_on_four_sheets(browser, folder, name):
    opened = Opened(browser, folder / name, maps=False)
    sheets = opened.page.pdf(format="A4")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 4
    opened.page.emulate_media(media="print")
    for place in ("#details", ".tools", "#provenance", "#listing tbody tr:nth-child(21)"):
        assert not opened.page.locator(place).first.is_visible()
    for place in (".answers", "#review", ".review"):
        assert opened.page.locator(place).first.is_visible()
    opened.context.close()


def test_everything_has_a_name_for_a_screen_reader(opened):
    unnamed = opened.page.evaluate(
        """() => Array.from(document.querySelectorAll('button, input, img, table, [role]')).filter(node =>
          !(node.getAttribute('aria-label') || node.getAttribute('alt') || node.textContent.trim()
            || (node.labels && node.labels.length) || node.id === 'told')).map(node => node.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    assert opened.page.get_attribute("html", "lang") == "en"
    scopes = opened.page.eval_on_selector_all("th", "heads => heads.map(head => head.getAttribute('scope'))")
    assert set(scopes) <= {"col", "row"}


def test_hostile_text_stays_text(browser, tmp_path):
    count = len(HOSTILE)
    scores = {"newton": np.arange(count, 0.0, -1.0), "leverage": np.full(count, 0.5), "loss": np.arange(1.0, count + 1)}
    names = np.array(HOSTILE, dtype=object)
    place = tmp_path / "report.html"
    meta = {"unit": "record", HOSTILE[0]: HOSTILE[1]}
    report(ScoreTable(scores, names, meta, {"class": names, f"subgroup_{HOSTILE[2]}": names}), place)
    assert place.stat().st_size < 3_000_000
    opened = Opened(browser, place)
    assert opened.errors == []
    assert opened.page.evaluate("() => window.broken") is None
    shown = opened.shown("id")
    assert shown[0] == HOSTILE[0]
    assert shown[3] == "{{ 7 * 7 }}"
    assert "\u202e" not in "".join(shown)
    assert "\x00" not in "".join(shown)
    assert shown[7] == "🙂 emoji"
    opened.drag((0.15, 0.12), (0.99, 0.99))
    assert opened.page.evaluate("() => giveawaySource.selected.indices.length") >= count - 1
    assert opened.page.evaluate("() => window.broken") is None
    assert len(opened.shown("id")) >= count - 1
    opened.context.close()
