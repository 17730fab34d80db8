"""A report as Markdown: the README.md of its folder, which shows the PNGs beside it."""

from lsgd.report.blocks import Block, Content, Figures, Listing, Outcomes, Table, printable
from lsgd.tables import markdown


def render(content: Content) -> str:
    """The whole README.md."""
    parts = [f"# {content.title}", *content.lead]
    for section in content.sections:
        parts.append(f"## {section.title}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Table():
            rows = [list(map(printable, row)) for row in block.rows]
            return markdown(block.head, rows)
        case Outcomes():
            return "\n".join(
                f"- **{outcome}**: {says} ({detail})" for says, outcome, detail in block.items
            )
        case Listing():
            return "\n".join(f"- {printable(item)}" for item in block.items)
        case Figures():
            return "\n\n".join(f"![{figure.alt}]({figure.name}.png)" for figure in block.figures)
        case str():
            return printable(block)
