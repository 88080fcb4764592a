"""Classifiers without a transformer, from scikit-learn: simple baselines.

Images are their normalised pixels, texts the counts of their tokens weighted by inverse document
frequency, and sequences means and standard deviations of their channels over time, standardised.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits
from torch import Tensor

from probseq.images import normalize
from probseq_apps.baselines.random_convolutions import RandomConvolutions
from probseq_apps.data.images import ImageData
from probseq_apps.data.parts import Part
from probseq_apps.data.sequences import SequenceData
from probseq_apps.data.texts import TextData

Data: TypeAlias = ImageData | TextData | SequenceData
# Rows of numbers: an array, or a sparse matrix.
Features: TypeAlias = Any

MOST_ROWS_OF_GP = 2_000
"""A Gaussian process classifier factorises a covariance of all training rows, many times."""
_SMALLEST = float(np.finfo(np.float32).tiny)


class Smoothed(KNeighborsClassifier):
    """Nearest neighbours, and one more neighbour that is a little of every class.

    Plain shares are 0 for classes without a neighbour, and the likelihood then is 0 as well.
    """

    def predict_proba(self, X: Features) -> np.ndarray:
        """Return (k·share + 1/C) / (k + 1)."""
        shares, count = np.asarray(super().predict_proba(X)), float(self.n_neighbors or 0)
        return (count * shares + 1 / shares.shape[1]) / (count + 1)


def _candidates(name: str, features: Features, seed: int, *, choose: bool) -> list[Any]:
    """Return estimators of one kind, of which validation data choose, or the default alone."""
    match name:
        case "logreg" | "randconv":  # from strong to weak penalties
            weights = (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0) if choose else (1.0,)
            return [LogisticRegression(C=weight, max_iter=1000) for weight in weights]
        case "mlp":
            make = partial(MLPClassifier, (128,), max_iter=500, random_state=seed % 2**32)
            return [make(alpha=alpha) for alpha in ((1e-2, 1e-4, 1.0, 10.0) if choose else (1e-2,))]
        case "knn":
            counts = (5, 1, 3, 10, 30) if choose else (5,)
            counts = dict.fromkeys(min(count, features.shape[0]) for count in counts)
            return [Smoothed(n_neighbors=count) for count in counts]
        case _:
            # Its hyperparameters maximise the evidence, from the typical distance of two rows on.
            scale = float(np.sqrt(2 * features.var(0).sum()))
            return [GaussianProcessClassifier(ConstantKernel(10.0) * RBF(scale))]


def fit_estimator(
    name: str, data: Data, *, seed: int
) -> Callable[[Part], tuple[Float32[Tensor, "n classes"], Tensor]]:
    """Fit a classifier and return a function that predicts logarithms of class probabilities.

    Behind them are the features that it has of sequences, of all else features of no width.
    It is `logreg`, `mlp` (128 hidden units), `knn`, `gp` (RBF kernel, one against the rest) or
    `randconv` (`logreg` on random convolutions). Its hyperparameter (C, α or k) is chosen by the
    likelihood of the validation part, if there is any.
    """
    if isinstance(data, SequenceData):
        featurise = _of_sequences(data, seed if name == "randconv" else None)
    else:
        featurise = _featuriser(data, dense=name == "gp")
    features, labels = featurise(data.train.inputs), data.train.targets.numpy()

    def predict(estimator: Any, part: Part) -> tuple[Tensor, Tensor]:
        probs = np.full((len(part), data.num_classes), _SMALLEST)
        rows = featurise(part.inputs)
        with threadpool_limits(torch.get_num_threads()):
            # A class without training rows has no column.
            probs[:, estimator.classes_] = estimator.predict_proba(rows)
        dense = rows if isinstance(data, SequenceData) else np.zeros((len(part), 0))
        return torch.as_tensor(probs).clamp(_SMALLEST).log().float(), torch.as_tensor(dense)

    def validation_loss(estimator: Any) -> float:
        return float(F.nll_loss(predict(estimator, data.validation)[0], data.validation.targets))

    choose = len(data.validation) > 0
    chosen, lowest = None, float("inf")
    # As many threads as torch has: two on a busy core spin, and several jobs may run at a time.
    with warnings.catch_warnings(), threadpool_limits(torch.get_num_threads()):
        # Of two candidates that have not converged the better one still counts.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for each in _candidates(name, features, seed, choose=choose):
            each.fit(features, labels)
            loss = validation_loss(each) if choose else 0.0
            if loss < lowest:
                chosen, lowest = each, loss
            elif name in ("logreg", "randconv"):  # weaker penalties are worse, and take longest
                break
    return partial(predict, chosen)


def _of_sequences(data: SequenceData, seed: int | None) -> Callable[[Tensor], Features]:
    """Return a function from sequences to standardised numbers; a seed is of convolutions."""

    def prepared(x: Tensor) -> tuple[Tensor, Tensor]:
        x = data.prepared(x)
        return x[..., :-1], x[..., -1] > 0

    def moments(x: Tensor, frame: Tensor) -> Tensor:
        mean = x.sum(1) / frame.sum(1, keepdim=True)
        squares = torch.where(frame[..., None], x - mean[:, None], 0.0).square().sum(1)
        return torch.cat([mean, (squares / frame.sum(1, keepdim=True)).sqrt()], 1)

    train = prepared(data.train.inputs)
    features = moments if seed is None else RandomConvolutions(*train, seed=seed)
    raw = features(*train).double()
    mean, std = raw.mean(0), raw.std(0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    return lambda x: ((features(*prepared(x)).double() - mean) / std).numpy()


def _featuriser(data: ImageData | TextData, *, dense: bool) -> Callable[[Tensor], Features]:
    """Return a function from raw inputs to rows of numbers, for texts a sparse matrix or not."""
    if isinstance(data, ImageData):
        return lambda images: normalize(images, data.mean, data.std).flatten(1).numpy()
    weights = TfidfTransformer(sublinear_tf=True)
    weights.fit(_counts(data.train.inputs, len(data.vocab)))

    def weighted(tokens: Tensor) -> Features:
        rows: Any = weights.transform(_counts(tokens, len(data.vocab)))
        return rows.toarray() if dense else rows

    return weighted


def _counts(tokens: Tensor, size: int) -> csr_matrix:
    """Return the count of each token in each text; padding (0) is not counted."""
    rows, columns = (tokens > 0).nonzero(as_tuple=True)
    ones = np.ones(len(rows), dtype=np.float32)
    indices = (rows.numpy(), tokens[rows, columns].numpy())
    return csr_matrix((ones, indices), shape=(len(tokens), size))  # equal places add up
