"""What a refusal offers for a word that is no name."""

import pytest

from lsgd.suggestions import MAX_LISTED_NAMES, did_you_mean

MANY = [f"recipe{number}" for number in range(MAX_LISTED_NAMES)]


@pytest.mark.parametrize(
    ("word", "known", "says"),
    [
        ("epoch", ["epochs", "seed"], "did you mean epochs?"),
        ("bs9k", ["bs8k", "bs4k", "digits"], "did you mean bs8k or bs4k?"),
        ("lr", ["schedule.reference_lr", "seed"], "did you mean schedule.reference_lr?"),
        ("nothing", ["a", "b"], "write one of a, b"),
        ("nothing", MANY, "see elsewhere"),
        ("", MANY, "see elsewhere"),
    ],
)
def test_the_nearest_names(word: str, known: list[str], says: str) -> None:
    assert did_you_mean(word, known, "see elsewhere") == says
