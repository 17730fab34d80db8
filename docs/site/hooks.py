"""MkDocs hooks that select the site's pages and generate parts of them.

A page keeps its path in the repository, so that its links work in both places. A code file to which
a page links becomes a page too. Between markers, such as `<!-- fields -->` and `<!-- end -->`, a
page in the repository describes what the site generates there.
"""

import re
from collections.abc import Callable, Iterator
from html import escape, unescape
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from docs.site import commands, fields

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**/*.md",
    "benchmarks/README.md",
    "data/README.md",
    "data/*/README.md",
    "launch/README.md",
    "lsgd/fold/README.md",
    "recipes/README.md",
    "results/**/README.md",
)
STYLE = "docs/site/pages.css"
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
CODE = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".toml": "toml", ".json": "json"}
"""The suffixes of code files that are shown as pages, with their languages."""
BOOSTS = {"CHANGELOG.md": 0.1, "results/": 0.5, "docs/how-to/": 2.0, "docs/tutorials/": 2.0}
"""The factors on the search score of pages, by the prefix of their paths.

Readers who search want a guide, and rarely the history of a term.
"""
BLOCK = re.compile(r'<div class="[^"]*highlight[^"]*"(?=>)(.*?)</pre>', re.DOTALL)
MADE: dict[str, Callable[[], str]] = {"commands": commands.helps, "fields": fields.tables}
"""The functions that generate the text between each marker and the next end marker."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the site's files: all pages, the files they show, and the code to which they link."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    pages = {path.relative_to(ROOT).as_posix() for each in PAGES for path in ROOT.glob(each)}
    for uri in sorted(pages):
        files.append(_file(uri, config))
    for uri in sorted({target for page in pages for target in _targets(page)} - pages):
        if PurePosixPath(uri).suffix in CODE:
            files.append(File.generated(config, f"{uri}.md", content=_as_page(uri)))
        elif PurePosixPath(uri).suffix != ".ipynb":
            files.append(_file(uri, config))
    files.append(_file(STYLE, config))
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb")):
        for file in _notebook(notebook, config):
            files.append(file)
    _list_results(config)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with generated parts and links to code pages; set its rank in searches."""
    boosts = (boost for path, boost in BOOSTS.items() if page.file.src_uri.startswith(path))
    page.meta.setdefault("search", {}).setdefault("boost", next(boosts, 1.0))
    for marker, make in MADE.items():
        before, begin, rest = markdown.partition(f"<!-- {marker} -->")
        if begin:
            markdown = before + make() + rest.partition("<!-- end -->")[2]
    return LINK.sub(lambda link: _to_page(link, page.file.src_uri, files), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the copy buttons of a page's consoles copy the commands without their output."""
    return BLOCK.sub(_with_commands, html)


def _with_commands(block: re.Match[str]) -> str:
    """Add the commands to copy to a block of code if it is a console."""
    text = unescape(re.sub("<[^>]*>", "", block[1].removeprefix(">")))
    commands = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    if not commands:
        return block[0]
    end = block.start(1) - block.start()
    copied = escape("\n".join(commands))
    return f'{block[0][:end]} data-copy="{copied}"{block[0][end:]}'


def _file(uri: str, config: MkDocsConfig) -> File:
    return File(uri, str(ROOT), config.site_dir, config.use_directory_urls)


def _targets(page: str) -> Iterator[str]:
    """Yield the files of the repository to which a page links."""
    for target, _ in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        path = (ROOT / page).parent.joinpath(target).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path.relative_to(ROOT).as_posix()


def _to_page(link: re.Match[str], source: str, files: Files) -> str:
    """Rewrite a link if its target is a code file, a notebook or a folder with a README."""
    target, anchor = link[1], link[2] or ""
    path = (ROOT / source).parent.joinpath(target).resolve()
    if path.is_dir() and (path / "README.md").exists():
        return f"]({target.rstrip('/')}/README.md{anchor})"
    if path.is_file() and path.suffix in CODE:
        return f"]({target}.md{anchor})"
    if path.suffix == ".ipynb":
        return f"]({target.removesuffix('.ipynb')}.md{anchor})"
    return link[0]


def _as_page(uri: str) -> str:
    text = (ROOT / uri).read_text(encoding="utf-8")
    fence = "`" * 4
    head = "---\nsearch:\n  exclude: true\n---\n"
    return f"{head}# {uri}\n\n{fence}{CODE[PurePosixPath(uri).suffix]}\n{text}{fence}\n"


def _notebook(path: Path, config: MkDocsConfig) -> Iterator[File]:
    """Yield the page of an executed notebook, and the figures in it."""
    uri = path.relative_to(ROOT).with_suffix("")
    text, resources = MarkdownExporter().from_filename(str(path))  # type: ignore[no-untyped-call]
    figures: dict[str, Any] = resources["outputs"]
    for name, content in figures.items():
        text = text.replace(f"({name})", f"({uri.name}-{name})")
        yield File.generated(config, f"{uri.parent}/{uri.name}-{name}", content=content)
    yield File.generated(config, f"{uri}.md", content=text)


def _list_results(config: MkDocsConfig) -> None:
    """Add each folder of results to the navigation, the newest first."""
    assert config.nav is not None
    (listed,) = (entry["Results"] for entry in config.nav if "Results" in entry)
    for path in sorted((ROOT / "results").glob("*/README.md"), reverse=True):
        uri = path.relative_to(ROOT).as_posix()
        if uri not in [
            value for entry in listed if isinstance(entry, dict) for value in entry.values()
        ]:
            listed.append({path.parent.name: uri})
