"""A calibrated classifier, and the files that it is kept in.

Not in the papers.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.files import sha256, write_atomic
from probseq.transformers.adapters import deviations, sample_predictions
from sgpa.drop_in import replace_attention

_FACTS, _TENSORS = "calibration.json", "deviation.npz"


class Candidate(NamedTuple):
    """One way to calibrate.

    Attributes:
        deviation: prior standard deviation σ, the mean over the heads; 0 is the model as it was.
        temperature: what logarithms of probabilities are divided by; 1 leaves them.
        nll: negative log-likelihood of one half of the validation data with what the other half
            chooses, in nats an example, mean over both halves.
    """

    deviation: float
    temperature: float
    nll: float


class Calibrated(nn.Module):
    """A classifier that gives calibrated log-probabilities; :func:`calibrate` makes it.

    Attributes:
        model: the classifier, with its deviation if one was chosen.
        candidates: what was tried, by name.
        chosen: name of the candidate of the lowest negative log-likelihood.
        num_samples: samples S of a prediction.
    """

    def __init__(
        self, model: nn.Module, candidates: Mapping[str, Candidate], chosen: str, num_samples: int
    ) -> None:
        super().__init__()
        self.model, self.candidates, self.chosen = model, dict(candidates), chosen
        self.num_samples = num_samples

    @torch.no_grad()
    def forward(
        self, inputs: Any, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the logarithms of predictive probabilities.

        Args:
            inputs: a tensor, or a mapping of keyword arguments, as the model takes.
            generator: source of the draws.
        """
        chosen = self.candidates[self.chosen]
        samples = self.num_samples if chosen.deviation else None
        found = log_probabilities(self.model, inputs, samples, generator)
        return (found / chosen.temperature).log_softmax(-1)

    def save(self, folder: str | Path) -> None:
        """Write what was chosen and the deviation, if there is one; the model's weights stay out.

        Args:
            folder: where to; it is made.

        Raises:
            OSError: it cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        processes = deviations(self.model) if self.candidates[self.chosen].deviation else {}
        tensors = {
            f"{name}/{key}": value.detach().cpu().numpy()
            for name, process in processes.items()
            for key, value in process.state_dict().items()
        }
        with (folder / _TENSORS).open("wb") as file:
            np.savez(file, allow_pickle=False, **tensors)
        facts = {
            "chosen": self.chosen,
            "candidates": {name: one._asdict() for name, one in self.candidates.items()},
            "num_samples": self.num_samples,
            "jitter": {name: process.jitter for name, process in processes.items()},
            "model": fingerprint(self.model),
            "tensors": sha256(folder / _TENSORS),
        }
        write_atomic(folder / _FACTS, json.dumps(facts, indent=2) + "\n")


def load_calibrated(folder: str | Path, model: nn.Module) -> Calibrated:
    """Read what :meth:`Calibrated.save` wrote, for the same model.

    Args:
        folder: where it was saved.
        model: with the weights that were calibrated, and no deviation; it gets one in place, and is
            put into evaluation mode.

    Returns:
        The calibrated model.

    Raises:
        ValueError: the files are damaged or altered, or the model is another one.
        OSError: a file is not there.

    Example:
        >>> import torch, sgpa
        >>> from probseq.transformers import remove_attention
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.TransformerEncoder(layer, 1), torch.nn.Flatten(), torch.nn.Linear(64, 3)
        ... ).eval()
        >>> tokens, labels = torch.randn(30, 4, 16), torch.randint(3, (30,))
        >>> sgpa.calibrate(model, tokens, [(tokens, labels)], num_inducing=8).save("calibrated")
        >>> model = remove_attention(model)  # as it is after loading its own weights
        >>> sgpa.load_calibrated("calibrated", model)(tokens).shape
        torch.Size([30, 3])
    """
    folder = Path(folder)
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        whole, of = facts["tensors"], facts["model"]
        candidates = {name: Candidate(**one) for name, one in facts["candidates"].items()}
        chosen, samples = candidates[facts["chosen"]], int(facts["num_samples"])
        jitter = dict(facts["jitter"])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{folder / _FACTS} is damaged: {error}") from error
    if sha256(folder / _TENSORS) != whole:
        raise ValueError(f"{folder / _TENSORS} is damaged: it is not the file that was saved")
    if fingerprint(model) != of:
        raise ValueError(f"model must have the weights that {folder} was made for, and has others")
    if chosen.deviation:
        with np.load(folder / _TENSORS, allow_pickle=False) as arrays:
            tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        for name, own in jitter.items():
            state = {
                key.removeprefix(f"{name}/"): value
                for key, value in tensors.items()
                if key.startswith(f"{name}/")
            }
            inducing = state["inducing_mean"].shape[1]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # inducing inputs are read, and need no data
                replace_attention(model, layers=[name], num_inducing=inducing, jitter=own)
            deviations(model)[name].load_state_dict(state)
    return Calibrated(model.eval(), candidates, facts["chosen"], samples)


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's weights and their names, deviations left out."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor) and "deviation.process." not in name:
            found.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
            content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
            found.update(content.numpy().tobytes())
    return found.hexdigest()


def log_probabilities(
    model: nn.Module,
    inputs: Any,
    num_samples: int | None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "batch classes"]:
    """Return the logarithm of the mean probabilities of samples; ``None``: of the model's own."""
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    given = () if named else (inputs,)
    if num_samples is None:
        return _logits(model(*given, **named)).log_softmax(-1)
    drawn = sample_predictions(model, *given, num_samples=num_samples, generator=generator, **named)
    # log 1/S Σ softmax
    return _logits(drawn).log_softmax(-1).logsumexp(0) - torch.tensor(num_samples).log()


def _logits(outputs: Any) -> Tensor:
    if isinstance(outputs, Mapping):
        return outputs["logits"]
    return outputs if isinstance(outputs, Tensor) else outputs[0]
