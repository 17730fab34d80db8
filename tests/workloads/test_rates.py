import pytest

from lsgd.recipe.checks import WORKLOAD_METRICS
from lsgd.recipe.settings import MODELS
from lsgd.rules.metric import METRICS
from lsgd.workloads import Workload
from lsgd.workloads.images import ImageClassification
from lsgd.workloads.language import LanguageModeling
from lsgd.workloads.tagging import SequenceTagging
from lsgd.workloads.trees import TreeClassification

KINDS: dict[str, type[Workload]] = {
    "images": ImageClassification,
    "language": LanguageModeling,
    "tagging": SequenceTagging,
    "trees": TreeClassification,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_goal_may_be_any_rate_that_the_workload_has(name: str) -> None:
    """The recipe's table, which is read without torch, has them all and no other."""
    kind = KINDS[name]
    workload = object.__new__(kind)  # no rate asks for a recipe or for data
    rates = workload.metrics(1.0, [9] * len(kind.count_names))
    assert WORKLOAD_METRICS[name] == ("loss", *rates)
    assert {*WORKLOAD_METRICS[name]} <= {*METRICS}
