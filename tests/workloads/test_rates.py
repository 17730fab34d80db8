import pytest

from lsgd.recipe import MODELS
from lsgd.recipe.checks import RATES
from lsgd.rules.metric import METRICS
from lsgd.workloads import Workload
from lsgd.workloads.images import Images
from lsgd.workloads.language import Language
from lsgd.workloads.tagging import Tagging
from lsgd.workloads.trees import Trees

KINDS: dict[str, type[Workload]] = {
    "images": Images,
    "language": Language,
    "tagging": Tagging,
    "trees": Trees,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_goal_may_be_any_rate_that_the_workload_has(name: str) -> None:
    """The recipe's table, which is read without torch, has them all and no other."""
    kind = KINDS[name]
    workload = object.__new__(kind)  # no rate asks for a recipe or for data
    rates = workload.rates(1.0, [9] * len(kind.counts))
    assert RATES[name] == ("loss", *rates)
    assert {*RATES[name]} <= {*METRICS}
