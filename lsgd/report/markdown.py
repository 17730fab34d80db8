"""The Markdown form of a report: the README.md of its folder, which shows the figures there."""

from lsgd.report.blocks import Block, BulletList, ClaimResults, Content, Figures, Table
from lsgd.sanitizing import sanitize_for_page
from lsgd.tables import escape_markdown, markdown_table


def render(content: Content) -> str:
    """Render the content of a report as the Markdown of its README.md."""
    parts = [f"# {_text(content.title)}", *map(_text, content.lead)]
    for section in content.sections:
        parts.append(f"## {_text(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Escape text for one line of Markdown, without control characters."""
    return escape_markdown(sanitize_for_page(text))


def _block(block: Block) -> str:
    match block:
        case Table():
            head, *rows = [list(map(_text, row)) for row in (block.head, *block.rows)]
            return markdown_table(head, rows)
        case ClaimResults():
            return "\n".join(
                f"- **{outcome}**: {_text(says)} ({_text(detail)})"
                for says, outcome, detail in block.items
            )
        case BulletList():
            return "\n".join(f"- {_text(item)}" for item in block.items)
        case Figures():
            return "\n\n".join(
                f"![{_text(figure.alt)}]({figure.name}.svg)" for figure in block.figures
            )
        case str():
            return _text(block)
