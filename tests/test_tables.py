"""Tables that line up as far as they can."""

from lsgd.tables import WIDEST, markdown


def test_columns_line_up_as_far_as_the_first_that_is_too_wide() -> None:
    """Behind a long cell nothing lines up anyway, and blanks would only make it longer."""
    long = "x" * (WIDEST + 1)
    assert markdown(["a", "what", "n"], [["long", long, "10"], ["b", "y|z", "9"]]).split("\n") == [
        "| a    | what | n |",
        "|------|---|--:|",
        f"| long | {long} | 10 |",
        "| b    | y\\|z | 9 |",
    ]


def test_a_column_without_a_cell_is_no_column_of_numbers() -> None:
    assert markdown(["a", ""], [["b", ""]]).split("\n") == ["| a |  |", "|---|---|", "| b |  |"]
