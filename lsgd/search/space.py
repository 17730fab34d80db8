"""The points of a search as words of its recipe, and the trials that they make."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from lsgd import config
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.recipe.search import Search
from lsgd.search.point import Values
from lsgd.trials.trial import FIXED_OF_TRIALS, Trial

CORNERS = 64
"""The corners of a space that are tried before anything is trained; of more, only those at which
one field after another is at its ends."""
FIXED = FIXED_OF_TRIALS | {
    "recipe": "a search has its recipe; write +search=NAME and words that hold for all trials",
    "seed": "write seeds=[0] for the seeds of every point, or sampler_seed=1 for another search",
}
"""What a word must not say, and why."""


def words_of(values: Values) -> list[str]:
    """The values as words of a recipe, exactly.

    >>> words_of({"optim.momentum": 0.1, "optim.nesterov": False})
    ['optim.momentum=0.1', 'optim.nesterov=false']
    """
    shown = {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in values.items()}
    return [f"{key}={value}" for key, value in shown.items()]


def in_short(values: Values) -> str:
    """The values for a person, in few digits.

    >>> in_short({"schedule.reference_lr": 0.0123456, "model.hidden": 120})
    'reference_lr 0.0123, hidden 120'
    """
    return ", ".join(
        f"{key.rpartition('.')[2]} {f'{v:.3g}' if isinstance(v, float) else v}"
        for key, v in values.items()
    )


class Space:
    """The recipe with the words of all trials, and what is searched of it."""

    def __init__(self, search: Search, words: Sequence[str]) -> None:
        """`words` are those of the command line; raises Refused for words that cannot be said."""
        self.search = search
        self.words = [*search.words, *words]
        for word in self.words:
            key = word.lstrip("+~").partition("=")[0]
            if key in FIXED:
                raise Refused(f"'{word}' cannot be said to a search: {FIXED[key]}")
            if key in search.space:
                raise Refused(f"'{word}' cannot be said to a search that tries {key}; leave it out")

    def recipe(self, values: Values) -> Recipe:
        """The recipe at this point, of seed 0; raises Refused, and names the point."""
        words = [f"+recipe={self.search.recipe}", *self.words, *words_of(values)]
        try:
            return config.load_recipe(words)
        except Refused as error:
            if not values:
                raise
            at = " ".join(words_of(values))
            raise Refused(f"the recipe refuses the point {at}: {error}") from None

    def trials(self, values: Values, seeds: Sequence[int]) -> list[Trial]:
        """The runs of this point with these seeds; without values, of the recipe as it is."""
        recipe, words = self.recipe(values), [*self.words, *words_of(values)]
        return [Trial(replace(recipe, seed=seed), [f"seed={seed}", *words]) for seed in seeds]

    def check(self) -> None:
        """Raise Refused if the recipe does, as it is or at a corner of the space."""
        self.recipe({})
        dimensions = self.search.dimensions
        ends = [[(dimension.key, end) for end in dimension.ends] for dimension in dimensions]
        corners = list(itertools.islice(itertools.product(*ends), CORNERS + 1))
        if len(corners) > CORNERS:
            first = [each[0] for each in ends]
            corners = [
                (*first[:place], end, *first[place + 1 :])
                for place, each in enumerate(ends)
                for end in each
            ]
        for corner in corners:
            self.recipe(dict(corner))
