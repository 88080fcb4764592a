"""Run folders with report files of the real schema."""

from dataclasses import asdict

import pytest

from probseq.summary import summarise
from probseq_apps.engine.files import write_json
from probseq_apps.settings.classify import RECIPES
from probseq_apps.settings.generate import GENERATE_RECIPES
from probseq_apps.settings.models import DIFFUSION_RECIPES, HVAE_RECIPES


def write(folder, report):
    folder.mkdir(parents=True)
    write_json(folder / "report.json", report)
    return folder


@pytest.fixture
def write_run(tmp_path):
    """Write a run folder; gives its path.

    `methods` holds values over the seeds by method and metric; further arguments are settings by
    their path, with `__` for the dot.
    """

    def make(name, methods, *, recipe="sgpa-cifar10", started_from=None, train=45000, **changes):
        settings = RECIPES.load(recipe).to_dict()
        seeds = max(len(v) for found in methods.values() for v in found.values())
        settings |= {"method": list(methods), "seeds": list(range(seeds))}
        for path, value in changes.items():
            target, *keys = settings, *path.split("__")
            for key in keys[:-1]:
                target = target[key]
            assert keys[-1] in target
            target[keys[-1]] = value
        found = {
            method: {
                "train_seconds": [120.0] * seeds,
                "metrics": {key: asdict(summarise(values)) for key, values in own.items()},
            }
            for method, own in methods.items()
        }
        data = {"name": settings["data"], "train": train, "classes": 10}
        report = {"experiment": "classify", "recipe": started_from or recipe, "data": data}
        return write(tmp_path / "runs" / name, report | {"settings": settings, "methods": found})

    return make


def generation(score, **changes):
    made = {"fd_name": "FD(classifier)", "is": score, "is_splits": 1, "num_samples": 200}
    return made | {"seconds": 30.0, "sampler": "ancestral"} | changes


@pytest.fixture
def diffusion_result():
    """Makes one file of results of `generate diffusion`; errors are by frame, per pixel."""

    def make(variant, seed, fd, *, errors=None, exact=None, fd_name="FD(classifier)"):
        frames = int(variant.partition("-")[0])
        steps = 4000 if variant == "1-frame-4000" else 1000
        drawn = {"sampling_steps": steps, "evaluations": steps if frames == 1 else 8 * steps}
        found = errors and {
            **{"frames": list(errors), "model": list(errors.values())},
            **{"exact": exact and list(exact.values()), "num_images": 100, "num_samples": 4},
        }
        return {
            **{"variant": variant, "seed": seed, "frames": frames, "frame_errors": found},
            **{
                "corruption": corruption_of(variant),
                "context": None if frames == 1 else frames // 2,
            },
            **{"parameters": 123_456, "steps": 900, "training_seconds": 60.0},
            "bits_per_dim": 3.0 + seed if variant == "1-frame" else None,
            "generation": generation(8.0, fd=fd, **drawn) | {"fd_name": fd_name},
        }

    return make


def corruption_of(variant):
    """Name of a variant's corruption; None for images alone."""
    kinds = {"first": "first-order-noise", "high": "high-order-noise", "matched": "matched-noise"}
    return None if variant[0] == "1" else kinds.get(variant.split("-")[2], "high-order-blur")


@pytest.fixture
def write_generation(tmp_path):
    """Write a folder with the report of an experiment of generated images; gives its path."""

    def make(name, experiment, results, *, recipe, size=16, **changes):
        recipes = GENERATE_RECIPES.by_name | DIFFUSION_RECIPES.by_name | HVAE_RECIPES.by_name
        settings = {**recipes[recipe]().to_dict(), **changes}
        data = {"name": settings["data"], "channels": 1, "image_size": size}
        report = {"experiment": experiment, "recipe": recipe, "settings": settings, "data": data}
        return write(tmp_path / "runs" / name, report | {"results": results})

    return make
