"""How large the report is, how long it takes to write and how long a browser takes to open it.

    python -m benchmarks.report_size [--rows 2 50000 1000000] [--out FILE.json]

Tables are made up, with names as ids, ten classes and every column that an audit has. The look is what the report needs
of the head besides (a map by PCA), done by `giveaway audit` once. A page is open in chromium once it is loaded and its
scripts have run; its maps are drawn when a reader unfolds them.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measuring import read_options, timed, write_result
from giveaway import Head, audit
from giveaway.findings.extras import make_extras
from giveaway.reporting.pages import summary_pages
from giveaway.reporting.report import render

MAPS, READY = "#map > summary", "html[data-maps=ready]"


def made_head(n: int, d: int = 16, classes: int = 10) -> Head:
    rng = np.random.default_rng(0)
    labels = np.arange(n) % min(classes, n)
    centres = rng.normal(size=(classes, d))
    features = (centres[labels] + rng.normal(size=(n, d))).astype(np.float32)
    weight = centres * 0.7
    ids = np.array([f"person-{i:07d}" for i in range(n)])
    return Head(features, features @ weight.T, labels, "cross_entropy", l2=1.0, ids=ids)


def opened(page: Path) -> tuple[float, float]:
    """Seconds until the page is loaded, and from there until the maps are drawn, each the best of three."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = []
        for _ in range(3):
            tab = browser.new_page()
            _, loaded = timed(lambda tab=tab: tab.goto(page.as_uri()))
            _, drawn = timed(lambda tab=tab: (tab.click(MAPS), tab.wait_for_selector(READY)))
            found.append((loaded, drawn))
            tab.close()
        browser.close()
    return min(loaded for loaded, _ in found), min(drawn for _, drawn in found)


def measure(n: int) -> dict[str, float | int]:
    head = made_head(n)
    table = audit(head)
    look, looked = timed(lambda: make_extras(head, table))
    (page, pages), written = timed(lambda: (render(table, extras=look), summary_pages(table)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(page, encoding="utf-8")
        loaded, drawn = opened(path)
        size = path.stat().st_size
    return {
        "rows": n,
        "megabytes": round(size / 1e6, 3),
        "summary_kilobytes": round(len(pages["summary.html"]) / 1e3, 1),
        "seconds_to_write": round(written, 2),
        "seconds_of_the_look": round(looked, 2),
        "seconds_to_open": round(loaded, 2),
        "seconds_to_draw_the_maps": round(drawn, 2),
    }


def main() -> None:
    options = read_options(__doc__, "report_size.json", rows=(2, 1_000, 50_000, 1_000_000))
    write_result(options.out, {"found": [measure(n) for n in options.rows]}, "bokeh", "matplotlib")


if __name__ == "__main__":
    main()
