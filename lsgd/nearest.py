"""The names that somebody may have meant by a word that is none of them."""

import difflib
from collections.abc import Sequence

FEW = 20
"""So many names still fit into a sentence, where none of them is near."""


def did_you_mean(
    word: str, known: Sequence[str], remedy: str = "see --help for what there is"
) -> str:
    """The end of a refusal: the names nearest to the word, else all of a few, else the remedy."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.85)
    near = near or difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    near = near or [name for name in known if word and word in name][:3]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"write one of {', '.join(known)}" if len(known) < FEW else remedy
