"""The HTML form of a report: one self-contained page, readable on a phone too.

It is written as XML, so that any XML parser can detect a truncated page.
"""

import re
from html import escape

from lsgd.report.blocks import Block, BulletList, ClaimResults, Content, Figures, Table
from lsgd.report.claims import FAILS, HOLDS, OPEN
from lsgd.report.drawing import Figure
from lsgd.sanitizing import sanitize_for_page

STYLE = """
:root {
  color-scheme: light dark;
  --text: #1a1c20; --soft: #5c6370; --ground: #ffffff; --card: #f5f6f8; --line: #d9dce2;
  --yes: #00674d; --no: #a83c00; --open: #5c6370;
}
@media (prefers-color-scheme: dark) {
  :root {
    --text: #e4e6ea; --soft: #a0a7b4; --ground: #14161a; --card: #1e2127; --line: #363b45;
    --yes: #4fd1a5; --no: #ff9a5c; --open: #a0a7b4;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 78rem; color: var(--text);
  background: var(--ground); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .8rem; }
h2 {
  font-size: 1.15rem; margin: 2.4rem 0 .7rem; padding-top: .6rem; border-top: 1px solid var(--line);
}
p { max-width: 46rem; margin: .6rem 0; }
.lead p:first-child { font-size: 1.1rem; }
.lead p:last-child { font-weight: 600; }
ul { max-width: 46rem; padding-left: 1.2rem; margin: .5rem 0; }
li { margin: .25rem 0; }
code { font: .875em ui-monospace, monospace; overflow-wrap: anywhere; }
.claims { list-style: none; padding: 0; max-width: none; display: grid; gap: .6rem; }
.claims li {
  background: var(--card); border-left: 4px solid var(--open); border-radius: 4px;
  margin: 0; padding: .6rem .9rem;
}
.claims .holds { border-color: var(--yes); }
.claims .fails { border-color: var(--no); }
.claims strong { display: block; font-size: .8rem; color: var(--open); }
.claims .holds strong { color: var(--yes); }
.claims .fails strong { color: var(--no); }
.claims small { display: block; color: var(--soft); font-size: .85rem; line-height: 1.4; }
.table { overflow-x: auto; margin: .8rem 0; border: 1px solid var(--line); border-radius: 4px; }
table {
  border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums;
}
th, td {
  padding: .4rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line);
}
td:first-child { white-space: normal; min-width: 13rem; }
tbody tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 600; background: var(--card); white-space: normal; }
.figures {
  display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
}
.figures.single { grid-template-columns: minmax(0, 42rem); }
figure { margin: .6rem 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .85rem; color: var(--soft); }
@media (max-width: 40rem) { td:first-child { min-width: 8.5rem; } }
"""

CLASSES = {HOLDS: "holds", FAILS: "fails", OPEN: "open"}


def render(content: Content) -> str:
    """Render the content of a report as one complete HTML page."""
    body = [f"<h1>{_plain(content.title)}</h1>"]
    body.append(_within("div", "lead", "".join(f"<p>{_text(line)}</p>" for line in content.lead)))
    for section in content.sections:
        blocks = "\n".join(_block(block) for block in section.blocks)
        body.append(f"<section>\n<h2>{_plain(section.title)}</h2>\n{blocks}\n</section>")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{_plain(content.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Table():
            head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in block.head)
            rows = "".join(
                "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>\n"
                for row in block.rows
            )
            table = f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table>"
            # A scrolling region must be reachable by keyboard.
            return f'<div class="table" tabindex="0">{table}</div>'
        case ClaimResults():
            items = "\n".join(
                f'<li class="{CLASSES[outcome]}"><strong>{escape(outcome)}</strong> {_text(says)}'
                f"<small>{_text(detail)}</small></li>"
                for says, outcome, detail in block.items
            )
            return _within("ul", "claims", items)
        case BulletList():
            return "<ul>" + "".join(f"<li>{_text(item)}</li>\n" for item in block.items) + "</ul>"
        case Figures():
            size = "figures single" if block.large else "figures"
            return _within("div", size, "\n".join(map(_figure, block.figures)))
        case str():
            return f"<p>{_text(block)}</p>"


def _figure(figure: Figure) -> str:
    svg = figure.inline.replace("<svg ", f'<svg role="img" aria-label="{_plain(figure.alt)}" ', 1)
    return f"<figure>{svg}<figcaption>{_plain(figure.title)}</figcaption></figure>"


def _text(text: str) -> str:
    """Escape text for HTML, and mark up text between backticks as code."""
    return re.sub(r"`(.+?)`", r"<code>\1</code>", _plain(text))


def _plain(text: str) -> str:
    """Escape text for HTML, and drop its control characters."""
    return escape(sanitize_for_page(text))


def _within(tag: str, name: str, inner: str) -> str:
    return f'<{tag} class="{name}">{inner}</{tag}>'
