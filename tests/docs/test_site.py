"""The site of the documentation is built strictly, needs no network, and all its links lead on."""

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from helpers.pages import PAGES, REPOSITORY, lines

pytestmark = [pytest.mark.docs, pytest.mark.slow]
PATIENCE = 900
"""Seconds that a build may take."""


class Elements(HTMLParser):
    """What a page links to, what it loads, and the names that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.copied: list[str] = []
        """What the copy buttons of consoles take."""
        self.schemes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element of the page."""
        given = {key: value for key, value in attrs if value is not None}
        self.names.update(given[key] for key in ("id", "name") if key in given)
        if "data-copy" in given:
            self.copied.append(given["data-copy"])
        if "data-md-color-scheme" in given:
            self.schemes.add(given["data-md-color-scheme"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img", "iframe", "source") and "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        build, cwd=REPOSITORY, env=environment, text=True, capture_output=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Elements]:
    """Every page of it."""
    found = sorted(site.rglob("*.html"))
    return {page: Elements(page.read_text(encoding="utf-8")) for page in found}


def test_each_page_of_the_tree_is_one_of_the_site(site: Path) -> None:
    for page in PAGES:
        name = page.relative_to(REPOSITORY).with_suffix(".html")
        at = site / (name.with_name("index.html") if name.stem == "README" else name)
        assert at.exists(), name


def test_every_link_leads_to_a_page_and_a_name_in_it(
    site: Path, pages: dict[Path, Elements]
) -> None:
    lost = []
    for page, elements in pages.items():
        for link in (*elements.links, *elements.loaded):
            target, name = urldefrag(link)
            if urlsplit(link).scheme or page == site / "404.html":
                continue
            to = (page.parent / unquote(target)).resolve() if target else page
            named = to not in pages or not name or unquote(name) in pages[to].names
            if not to.is_file() or not named:
                lost.append(f"{page.relative_to(site)}: {link}")
    assert not lost, "\n".join(lost)


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Elements]) -> None:
    loaded = [each for elements in pages.values() for each in elements.loaded]
    assert loaded
    assert not [each for each in loaded if urlsplit(each).netloc]


def test_tables_and_helps_stand_where_their_markers_were(site: Path) -> None:
    fields = (site / "docs/reference/fields.html").read_text(encoding="utf-8")
    commands = (site / "docs/reference/commands.html").read_text(encoding="utf-8")
    assert 'id="schedule.warmup_epochs"' in fields
    assert "usage: python -m lsgd.compare" in commands
    assert "<!-- " not in fields.split("<article", 1)[1].split("</article>", 1)[0]


def test_the_copy_button_of_a_console_takes_its_commands(
    site: Path, pages: dict[Path, Elements]
) -> None:
    """And not what they print."""
    for page in PAGES:
        if page.name == "README.md":
            continue
        consoles = [line.text for line in lines(page) if line.language == "console"]
        at = site / page.relative_to(REPOSITORY).with_suffix(".html")
        copied = "\n".join(pages[at].copied).splitlines()
        assert set(consoles) <= set(copied), page
        assert not [line for line in copied if line.startswith("$")], page


def test_a_search_ranks_guides_above_what_was_measured_and_changed(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    boosts = {each["location"]: each.get("boost", 1) for each in index["docs"]}
    results = max(boost for at, boost in boosts.items() if at.startswith("results/"))
    assert boosts["CHANGELOG.html"] < results < 1 < boosts["docs/how-to/stops.html"]


def test_a_reader_may_choose_a_dark_page(pages: dict[Path, Elements], site: Path) -> None:
    assert pages[site / "index.html"].schemes == {"default", "slate"}
