"""The folders of `probseq generate run`, and of `generate diffusion` and `generate hvae`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probseq_apps.engine.files import write_atomic
from probseq_apps.experiments.diffusion_arms import model_name
from probseq_apps.experiments.generate_arms import prior_name, run_name
from probseq_apps.folder import RESULTS

TOKENIZERS, TOKENS, PRIORS = "tokenizers", "tokens", "priors"
CLASSIFIER, SAMPLES = "classifier", "samples"
MODELS, PROCESS = "models", "process"
# What goes beside the results when an experiment is overwritten.
PARTS = (SAMPLES, PRIORS, TOKENS, TOKENIZERS, CLASSIFIER)
MODEL_PARTS = (SAMPLES, PROCESS, MODELS, CLASSIFIER)


def tokenizer_folder(folder: Path, arm: str, stem: str, seed: int) -> Path:
    """Folder of a tokenizer's run."""
    return folder / TOKENIZERS / run_name(arm, stem, seed)


def tokens_folder(folder: Path, arm: str, stem: str, seed: int) -> Path:
    """Folder of the tokens of the training images."""
    return folder / TOKENS / run_name(arm, stem, seed)


def prior_folder(folder: Path, prior: str, arm: str, stem: str, seed: int) -> Path:
    """Folder of a prior's run."""
    return folder / PRIORS / prior_name(prior, arm, stem, seed)


def samples_file(folder: Path, prior: str, arm: str, stem: str, seed: int) -> Path:
    """File of what a prior drew; see `Samples`."""
    return folder / SAMPLES / f"{prior_name(prior, arm, stem, seed)}.npz"


def result_file(folder: Path, arm: str, stem: str, seed: int) -> Path:
    """What was measured of an arm; it is there once the arm is finished."""
    return folder / RESULTS / f"{run_name(arm, stem, seed)}.json"


def model_folder(folder: Path, arm: str, seed: int) -> Path:
    """Folder of a model's run."""
    return folder / MODELS / model_name(arm, seed)


def model_samples_file(folder: Path, arm: str, seed: int) -> Path:
    """File of what a model drew; see `Samples`."""
    return folder / SAMPLES / f"{model_name(arm, seed)}.npz"


def process_file(folder: Path, arm: str, seed: int) -> Path:
    """File of how a few of these came into being; see `Process`."""
    return folder / PROCESS / f"{model_name(arm, seed)}.npz"


def reference_file(folder: Path) -> Path:
    """What was measured of the test images as if they were samples."""
    return folder / RESULTS / "reference.json"


def write_result(file: Path, found: Mapping[str, Any]) -> None:
    """Store what was measured; the folder is made."""
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, json.dumps(found, indent=2, allow_nan=False) + "\n")


def read_result(file: Path) -> dict[str, Any]:
    """Read what `write_result` wrote."""
    return json.loads(file.read_text("utf-8"))
