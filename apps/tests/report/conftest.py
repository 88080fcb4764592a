"""Run folders with report files of the real schema."""

import json
from statistics import fmean, stdev

import pytest

from probseq_apps.recipes import load_recipe


def metric(values):
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 and None not in values else None
    mean = None if None in values else fmean(values)
    return {"mean": mean, "standard_error": error, "values": list(values)}


@pytest.fixture
def write_run(tmp_path):
    """Write a run folder; gives its path.

    `methods` holds values over the seeds by method and metric; further arguments are settings by
    their path, with `__` for the dot.
    """

    def write(
        name,
        methods,
        *,
        recipe="sgpa-cifar10",
        started_from=None,
        facts=None,
        parent=None,
        **changes,
    ):
        settings = load_recipe(recipe).to_dict()
        seeds = max(len(v) for found in methods.values() for v in found.values())
        settings["method"], settings["seeds"] = list(methods), list(range(seeds))
        for path, value in changes.items():
            *sections, key = path.split("__")
            target = settings
            for section in sections:
                target = target[section]
            assert key in target
            target[key] = value
        report = {
            "experiment": "classify",
            "recipe": started_from or recipe,
            "settings": settings,
            "data": {"name": settings["data"], "train": 45000, "validation": 5000, "test": 10000}
            | {"classes": 10, "notes": []}
            | (facts or {}),
            "versions": {},
            "machine": "test",
            "methods": {
                method: {
                    "title": method,
                    "seeds": list(range(seeds)),
                    "temperatures": [],
                    "train_seconds": [120.0] * seeds,
                    "metrics": {key: metric(values) for key, values in found.items()},
                }
                for method, found in methods.items()
            },
        }
        folder = (parent or tmp_path / "runs") / name
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps(report))
        return folder

    return write
