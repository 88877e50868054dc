"""The site builds without a warning, and its pages load nothing from the network."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
LOADED = {**dict.fromkeys(("script", "img", "iframe", "source", "video", "audio"), "src"), "object": "data"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="needs mkdocs and mkdocs-material: pip install 'giveaway[docs]'",
)


class Page(HTMLParser):
    """What a page loads, links to, and can be linked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if LOADED.get(tag) in given:
            self.loads.append(given[LOADED[tag]])
        if tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given["href"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_every_page_is_in_the_navigation() -> None:
    written = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written == set(_navigation())


def _navigation() -> list[str]:
    named = re.findall(r"^ +- [^\n]*?([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) >= 18
    assert len(set(named)) == len(named)
    return named


@pytest.mark.slow
def test_every_page_of_the_navigation_exists(site: Path) -> None:
    for name in _navigation():
        assert (site / f"{name}.html").is_file(), name


@pytest.mark.slow
def test_pages_load_nothing_from_the_network(site: Path, pages: dict[Path, Page]) -> None:
    assert pages
    for path, page in pages.items():
        assert page.loads, path.name
        for place in page.loads:
            assert not _of_network(place), f"{path.name}: {place}"
            parts = urlsplit(place)
            if parts.scheme == "data":
                continue
            base = site if parts.path.startswith("/") else path.parent
            assert (base / unquote(parts.path).lstrip("/")).is_file(), f"{path.name}: {place}"


def test_what_a_page_would_load_from_the_network_is_noticed() -> None:
    text = """<script src="https://a/b.js"></script><link rel="stylesheet" href="//a/b.css"><img src="http://a/b.png">
    <a href="https://a">fine</a><img src="data:image/png;base64,"><script src="assets/b.js"></script>"""
    assert [_of_network(place) for place in Page(text).loads] == [True, True, True, False, False]


def _of_network(place: str) -> bool:
    parts = urlsplit(place)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


@pytest.mark.slow
def test_style_sheets_load_nothing_from_the_network(site: Path) -> None:
    sheets = sorted(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        assert not re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)|@import\s+[^;]*//[^;]*", text), sheet.name


@pytest.mark.slow
def test_internal_links_and_anchors_resolve(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        if path.name == "404.html":  # served under any address, so its links start at the root
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment and target in pages and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {link}"


@pytest.mark.slow
def test_nothing_of_the_build_is_published(site: Path) -> None:
    assert not list(site.rglob("*.py"))
