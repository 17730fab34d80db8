"""Tables that line up as far as they can, and texts of others in Markdown."""

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lsgd.tables import MAX_PADDED_WIDTH, escape_markdown, markdown_table


def test_columns_line_up_as_far_as_the_first_that_is_too_wide() -> None:
    """Behind a long cell nothing lines up anyway, and blanks would only make it longer."""
    long = "x" * (MAX_PADDED_WIDTH + 1)
    assert markdown_table(["a", "what", "n"], [["long", long, "10"], ["b\nc", "y|z", "9"]]).split(
        "\n"
    ) == [
        "| a    | what | n |",
        "|------|---|--:|",
        f"| long | {long} | 10 |",
        "| b c  | y\\|z | 9 |",
    ]


def test_a_column_without_a_cell_is_no_column_of_numbers() -> None:
    assert markdown_table(["a", ""], [["b", ""]]).split("\n") == [
        "| a |  |",
        "|---|---|",
        "| b |  |",
    ]


@given(st.text(st.sampled_from("<>&;`[]()!\\*_:/# ab|'\"-"), max_size=24))
@example("<script>alert(1)</script>")
@example("``<b>`<b>")
@example("[a](javascript:b) ![a](b) <http://a> &lt; \\<b>")
def test_a_text_has_no_markup_but_code(text: str) -> None:
    """As a reader of Markdown finds it, and without code it reads as it was."""
    [block] = MarkdownIt("commonmark").parseInline(escape_markdown(text))
    pieces = block.children or []
    emphasis = {f"{kind}_{end}" for kind in ("em", "strong") for end in ("open", "close")}
    assert {piece.type for piece in pieces} <= {"text", "text_special", "code_inline"} | emphasis
    if not {*"`*_"} & {*text}:
        assert "".join(piece.content for piece in pieces).strip() == text.strip()
