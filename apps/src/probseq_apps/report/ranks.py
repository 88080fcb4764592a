"""Average ranks of methods over tasks."""

from collections.abc import Iterable, Mapping

import numpy as np
from scipy.stats import rankdata

from probseq_apps.report.labels import Direction


def average_ranks(tasks: Iterable[Mapping[str, float]], direction: Direction) -> dict[str, float]:
    """Rank the methods of each task, 1 being the best, and average over the tasks.

    Equal values share the mean of their places. A method's mean is over the tasks that have it, and
    it is ranked among the methods of each: a task with fewer methods has fewer ranks to give. Tasks
    with a single method are left out.

    Args:
        tasks: values by method, for each task.
        direction: which end is good.

    Returns:
        Mean rank by method, in order of appearance.
    """
    sign = -1.0 if direction == "higher" else 1.0
    ranks: dict[str, list[float]] = {}
    for values in tasks:
        if len(values) < 2:
            continue
        places = rankdata(sign * np.array(list(values.values())))
        for method, place in zip(values, places, strict=True):
            ranks.setdefault(method, []).append(float(place))
    return {method: sum(found) / len(found) for method, found in ranks.items()}
