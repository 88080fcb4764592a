"""A calibrated classifier, and the files that it is kept in.

Not in the papers.
"""

import hashlib
import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from probseq.files import sha256, write_atomic
from probseq.transformers.adapters import deviations, remove_attention
from probseq.transformers.fine_tuning import Tempered
from probseq.transformers.layouts import plain_name
from sgpa.drop_in import replace_attention

_FACTS, _TENSORS = "calibration.json", "deviation.npz"


class Candidate(NamedTuple):
    """One way to calibrate.

    Attributes:
        deviation: prior standard deviation σ, the mean over the heads; 0 is the model as it was.
        temperature: what logarithms of probabilities are divided by; 1 leaves them.
        nll: negative log-likelihood of one half of the validation data with what the other half
            chooses, in nats an example, mean over both halves.
        state: of the deviation beside each attention, by name; empty without one.
    """

    deviation: float
    temperature: float
    nll: float
    state: Mapping[str, Mapping[str, Tensor]] = {}


class Calibrated(Tempered):
    """A classifier that gives calibrated log-probabilities; :func:`calibrate` makes it.

    Attributes:
        candidates: what was tried, by name.
        chosen: name of the candidate that predicts, at first that of the lowest negative
            log-likelihood; see :meth:`use`.
    """

    def __init__(
        self, model: nn.Module, candidates: Mapping[str, Candidate], chosen: str, num_samples: int
    ) -> None:
        super().__init__(model, 1.0, num_samples)
        self.candidates = dict(candidates)
        self.use(chosen)

    def use(self, name: str) -> None:
        """Predict with a candidate: give the model its deviation, or take it away.

        Threads may predict with one model at the same time, but none while this changes it.

        Raises:
            ValueError: there is no such candidate.
        """
        if name not in self.candidates:
            raise ValueError(f"name must be among {', '.join(self.candidates)}, got {name!r}")
        remove_attention(self.model)
        self.chosen, self.temperature = name, self.candidates[name].temperature
        for layer, state in self.candidates[name].state.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # inducing inputs are known, and need no data
                inducing = state["inducing_mean"].shape[1]
                replace_attention(self.model, layers=[layer], num_inducing=inducing)
            deviations(self.model)[layer].load_state_dict(state)

    def save(self, folder: str | Path) -> None:
        """Write what was chosen and the deviation, if there is one; the model's weights stay out.

        Args:
            folder: where to; it is made.

        Raises:
            OSError: it cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = self.candidates[self.chosen]
        tensors: dict[str, Any] = {
            f"{layer}/{key}": value.cpu().numpy()
            for layer, state in chosen.state.items()
            for key, value in state.items()
        }
        content = io.BytesIO()
        np.savez(content, **tensors)
        write_atomic(folder / _TENSORS, content.getvalue())
        facts = {
            "chosen": self.chosen,
            "candidate": chosen._replace(state={})._asdict(),
            "num_samples": self.num_samples,
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
        The calibrated model, with the candidate that was chosen.

    Raises:
        ValueError: the files are damaged or altered, or the model is another one.
        OSError: a file is not there.

    Example:
        >>> import tempfile, torch, sgpa
        >>> from probseq.transformers import remove_attention
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.TransformerEncoder(layer, 1), torch.nn.Flatten(), torch.nn.Linear(64, 3)
        ... ).eval()
        >>> tokens = torch.randn(100, 4, 16)
        >>> labels = (5 * model(tokens)).softmax(-1).multinomial(1)[:, 0]
        >>> folder = tempfile.mkdtemp()
        >>> sgpa.calibrate(model, tokens, [(tokens, labels)], num_inducing=8).save(folder)
        >>> model = remove_attention(model)  # as it is after loading its own weights
        >>> sgpa.load_calibrated(folder, model)(tokens).shape
        torch.Size([100, 3])
    """
    folder = Path(folder)
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        whole, of, samples = facts["tensors"], facts["model"], int(facts["num_samples"])
        name, candidate = str(facts["chosen"]), Candidate(**facts["candidate"])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{folder / _FACTS} is damaged: {error}") from error
    if sha256(folder / _TENSORS) != whole:
        raise ValueError(f"{folder / _TENSORS} is damaged: it is not the file that was saved")
    if fingerprint(model) != of:
        raise ValueError(
            f"model must have the weights that {folder} was made for, and has others, or "
            "the same in another precision: convert it afterwards"
        )
    states: dict[str, dict[str, Tensor]] = {}
    with np.load(folder / _TENSORS, allow_pickle=False) as arrays:
        for place in arrays.files:
            layer, _, key = place.rpartition("/")
            states.setdefault(layer, {})[key] = torch.from_numpy(arrays[place])
    return Calibrated(model.eval(), {name: candidate._replace(state=states)}, name, samples)


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's weights and their names, deviations left out.

    What compilers, parallel models and PEFT put around a model has no weights and no name.
    """
    digest = hashlib.sha256()
    weights = {plain_name(model, name): value for name, value in model.state_dict().items()}
    for name, value in sorted(weights.items()):
        if isinstance(value, Tensor) and "deviation.process." not in name:
            digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
            content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(content.numpy().tobytes())
    return digest.hexdigest()
