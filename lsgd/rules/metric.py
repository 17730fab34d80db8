"""What the number of a run is; no torch is needed to know it."""

import statistics
from collections.abc import Mapping
from typing import Any

ERROR = "val_top1_error"
"""What the metric is made of, in percent; an epoch that was not evaluated has none."""


def median_of_last(rates: Mapping[int, Mapping[str, Any]]) -> float:
    """The paper's metric: the median of a run's last 5 top-1 validation errors, in percent, of what
    its epochs came to (section 5.1). Not every epoch need have been evaluated, but one must.

    >>> errors = [90.0, 9.0, 8.0, 30.0, 7.0, 8.5]
    >>> median_of_last({epoch: {ERROR: error} for epoch, error in enumerate(errors)})
    8.5
    """
    errors: list[float] = [rates[epoch][ERROR] for epoch in sorted(rates) if ERROR in rates[epoch]]
    return statistics.median(errors[-5:])
