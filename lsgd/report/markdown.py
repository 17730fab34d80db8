"""A report as Markdown: the README.md of its folder, which shows the PNGs beside it."""

from lsgd.report.blocks import Block, Content, Figures, Listing, Outcomes, Table, printable
from lsgd.report.wording import NONE


def render(content: Content) -> str:
    """The whole file."""
    parts = [f"# {content.title}", *content.lead]
    for section in content.sections:
        parts.append(f"## {section.title}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Table():
            return table(block)
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


def table(table: Table) -> str:
    """A Markdown table; the first column to the left, as text."""
    rule = ["---", *["---:" if _is_number(column) else "---" for column in _columns(table)[1:]]]
    return "\n".join(
        "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in row) + " |"
        for row in (table.head, rule, *table.rows)
    )


def _columns(table: Table) -> list[list[str]]:
    return [[row[index] for row in table.rows] for index in range(len(table.head))]


def _is_number(cells: list[str]) -> bool:
    numbers = [cell for cell in cells if cell not in (NONE, "")]
    return bool(numbers) and all(cell[0].isdigit() or cell[0] in "+−" for cell in numbers)
