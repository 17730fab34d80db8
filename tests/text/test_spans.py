"""Spans are counted as conlleval does, whose rules are written down here a second time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsgd.text.spans import SpanCounts

TAGS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
Tags = list[str]


def conlleval(gold: list[Tags], guessed: list[Tags]) -> tuple[int, int, int]:
    """The counts foundCorrect, foundGuessed and correctChunk of conlleval.pl, tag by tag, with its
    functions endOfChunk and startOfChunk as far as they are about B and I."""

    def parts(tag: str) -> tuple[str, str]:
        return (tag[0], tag[2:]) if "-" in tag else (tag, "")

    def ends(before: str, tag: str) -> bool:
        (last, last_kind), (own, kind) = parts(before), parts(tag)
        return last != "O" and (own in "BO" or last_kind != kind)

    def begins(before: str, tag: str) -> bool:
        (last, last_kind), (own, kind) = parts(before), parts(tag)
        return own != "O" and (own == "B" or last == "O" or last_kind != kind)

    correct = found = right = 0
    inside = False
    last_gold = last_guess = "O"
    # The script reads an empty line as O, and one more at the end.
    lines = [
        pair
        for one, other in zip(gold, guessed, strict=True)
        for pair in [*zip(one, other, strict=True), ("O", "O")]
    ]
    for tag, guess in lines:
        if inside:
            gold_ends, guess_ends = ends(last_gold, tag), ends(last_guess, guess)
            if gold_ends and guess_ends and parts(last_gold)[1] == parts(last_guess)[1]:
                inside, right = False, right + 1
            elif gold_ends != guess_ends or parts(tag)[1] != parts(guess)[1]:
                inside = False
        gold_begins, guess_begins = begins(last_gold, tag), begins(last_guess, guess)
        if gold_begins and guess_begins and parts(tag)[1] == parts(guess)[1]:
            inside = True
        correct, found = correct + gold_begins, found + guess_begins
        last_gold, last_guess = tag, guess
    return correct, found, right


def counted(gold: list[Tags], guessed: list[Tags]) -> tuple[int, ...]:
    flat = [
        torch.tensor([TAGS.index(tag) for tags in text for tag in tags]) for text in (gold, guessed)
    ]
    numbers = torch.tensor([i for i, tags in enumerate(gold) for _ in tags])
    counts = SpanCounts(TAGS, torch.device("cpu")).count(*flat, numbers)
    return tuple(count.item() for count in counts)


def of(text: str) -> list[Tags]:
    """Sentences between bars; o for O, and l, L, p, P for I-LOC, B-LOC, I-PER and B-PER."""
    letters = {"o": "O", "l": "I-LOC", "L": "B-LOC", "p": "I-PER", "P": "B-PER"}
    return [[letters[letter] for letter in sentence] for sentence in text.split("|")]


CASES = [
    # gold, guessed, spans there are, found, and right
    ("ooo", "ooo", (0, 0, 0)),
    ("l", "l", (1, 1, 1)),
    ("l", "L", (1, 1, 1)),  # IOB1 and BIO mean the same
    ("l", "p", (1, 1, 0)),
    ("ll", "lo", (1, 1, 0)),
    ("ll", "lL", (1, 2, 0)),
    ("lL", "ll", (2, 1, 0)),
    ("lp", "lp", (2, 2, 2)),  # a kind that changes parts them
    ("lLl", "lLo", (2, 2, 1)),
    ("ollo", "olLo", (1, 2, 0)),
    ("Pppo", "Pppp", (1, 1, 0)),
    ("l|l", "l|l", (2, 2, 2)),  # not over the end of a sentence
    ("lpLl|Ppo", "lpll|ppo", (4, 4, 4)),
    ("lLlp|P", "lllp|p", (4, 3, 2)),
]


@pytest.mark.parametrize(("gold", "guessed", "counts"), CASES)
def test_cases_by_hand(gold: str, guessed: str, counts: tuple[int, int, int]) -> None:
    assert conlleval(of(gold), of(guessed)) == counts
    assert counted(of(gold), of(guessed)) == counts


TAG_PAIRS = st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1)


@given(st.lists(TAG_PAIRS, min_size=1))
def test_any_tags_make_the_spans_of_conlleval(text: list[list[tuple[str, str]]]) -> None:
    gold = [[tag for tag, _ in sentence] for sentence in text]
    guessed = [[guess for _, guess in sentence] for sentence in text]
    assert counted(gold, guessed) == conlleval(gold, guessed)
