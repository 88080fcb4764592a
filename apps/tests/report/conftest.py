"""Run folders with report files of the real schema."""

import json
from statistics import fmean, stdev

import pytest

from probseq_apps.settings.classify import RECIPES
from probseq_apps.settings.generate import GENERATE_RECIPES
from probseq_apps.settings.models import DIFFUSION_RECIPES, HVAE_RECIPES


def metric(values):
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 and None not in values else None
    mean = None if None in values else fmean(values)
    return {"mean": mean, "standard_error": error, "values": list(values)}


def write(folder, report):
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(report))
    return folder


@pytest.fixture
def write_run(tmp_path):
    """Write a run folder; gives its path.

    `methods` holds values over the seeds by method and metric; further arguments are settings by
    their path, with `__` for the dot.
    """

    def make(
        name,
        methods,
        *,
        recipe="sgpa-cifar10",
        started_from=None,
        facts=None,
        **changes,
    ):
        settings = json.loads(json.dumps(RECIPES.load(recipe).to_dict()))
        seeds = max(len(v) for found in methods.values() for v in found.values())
        settings["method"], settings["seeds"] = list(methods), list(range(seeds))
        for path, value in changes.items():
            *sections, key = path.split("__")
            target = settings
            for section in sections:
                target = target[section]
            assert key in target
            target[key] = value
        data = {"name": settings["data"], "train": 45000, "validation": 5000, "test": 10000}
        report = {
            "experiment": "classify",
            "recipe": started_from or recipe,
            "settings": settings,
            "data": data | {"classes": 10, "notes": []} | (facts or {}),
            "methods": {
                method: {
                    "seeds": settings["seeds"],
                    "train_seconds": [120.0] * seeds,
                    "metrics": {key: metric(values) for key, values in found.items()},
                }
                for method, found in methods.items()
            },
        }
        return write(tmp_path / "runs" / name, report)

    return make


@pytest.fixture
def diffusion_result():
    """Makes one file of results of `generate diffusion`; errors are by frame, per pixel."""

    def make(arm, seed, fd, *, errors=None, exact=None, fd_name="FD(classifier)"):
        frames = int(arm.partition("-")[0])
        kinds = {
            "first": "first-order-noise",
            "high": "high-order-noise",
            "matched": "matched-noise",
        }
        kind = None if frames == 1 else kinds.get(arm.split("-")[2], "high-order-blur")
        steps = 4000 if arm == "1-frame-4000" else 1000
        found = None
        if errors is not None:
            found = {
                "frames": list(errors),
                "model": list(errors.values()),
                "exact": None if exact is None else list(exact.values()),
                "num_images": 100,
                "num_samples": 4,
            }
        return {
            **{"arm": arm, "seed": seed, "frames": frames, "corruption": kind},
            **{"context": None if frames == 1 else frames // 2, "diffusion_steps": steps},
            **{"parameters": 123_456, "steps": 900, "training_seconds": 60.0},
            "bits_per_dim": 3.0 + seed if arm == "1-frame" else None,
            "num_likelihood": 50 if arm == "1-frame" else 0,
            "frame_errors": found,
            "generation": {
                **{"fd": fd, "fd_name": fd_name, "is": 8.0, "is_std": 0.1, "is_splits": 1},
                **{"num_samples": 200, "seconds": 30.0, "sampler": "ancestral"},
                **{"sampling_steps": steps, "evaluations": steps if frames == 1 else 8 * steps},
            },
        }

    return make


@pytest.fixture
def hvae_result():
    """Makes one file of results of `generate hvae`."""

    def make(arm, seed, score, *, bound=2.0):
        return {
            **{"arm": arm, "seed": seed, "levels": 18, "parameters": 123_456, "steps": 1500},
            **{"training_seconds": 60.0, "bound": bound, "num_bound": 300},
            "generation": {
                **{"fd": 20.0, "fd_name": "FD(classifier)", "is": score, "is_std": 0.1},
                **{"is_splits": 10, "num_samples": 1000, "seconds": 30.0, "sampler": "ancestral"},
                **{"sampling_steps": 18, "evaluations": 18},
            },
        }

    return make


@pytest.fixture
def write_generation(tmp_path):
    """Write a folder with the report of an experiment of generated images; gives its path."""

    def make(name, experiment, results, *, recipe, size=16, **changes):
        recipes = GENERATE_RECIPES.known | DIFFUSION_RECIPES.known | HVAE_RECIPES.known
        settings = {**recipes[recipe]().to_dict(), **changes}
        report = {
            "experiment": experiment,
            "recipe": recipe,
            "settings": settings,
            "data": {"name": settings["data"], "channels": 1, "image_size": size},
            "results": results,
        }
        return write(tmp_path / "runs" / name, report)

    return make
