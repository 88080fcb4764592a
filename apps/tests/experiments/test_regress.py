import numpy as np
import pytest
import torch
from torch import nn

from probseq.transformers import TransformerOutput
from probseq_apps.cli import main
from probseq_apps.data.graphs import TokenLayout
from probseq_apps.engine.trainer import TrainStep
from probseq_apps.experiments.regress import regression_loss
from sgpa import LaplaceLikelihood, RegressionModel

pytest.importorskip("rdkit")

TINY = [
    *("--depth", "1", "--dim", "8", "--heads", "2", "--hidden-dim", "8"),
    *("--sgpa.num-inducing", "3", "--num-samples", "3", "--batch-size", "16", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def molecules(tmp_path_factory):
    """Chains with a few other atoms; their number of oxygens is to be predicted."""
    chains = [("C" * n + "OC" * oxygens, oxygens) for n in range(2, 8) for oxygens in range(5)]
    path = tmp_path_factory.mktemp("data") / "own.csv"
    path.write_text("\n".join(["smiles,oxygens", *(f"{s},{n}" for s, n in chains)]) + "\n")
    return path


def arguments(path, *more):
    return ["regress", "--data", f"csv:{path}", "--target", "oxygens", *TINY, *more]


@pytest.fixture(scope="module")
def finished(molecules, tmp_path_factory):
    """A finished experiment with all kinds of methods; its folder."""
    folder = tmp_path_factory.mktemp("regress") / "run"
    more = ["--method", "mle", "mcd", "sgpa", "sgpa+ensemble", "--epochs", "2", "--seeds", "0", "1"]
    assert main(arguments(molecules, *more, "--run-dir", str(folder))) == 0
    return folder


def stored(folder, method, seed):
    with np.load(folder / method / f"seed-{seed}" / "predictions.npz") as arrays:
        return dict(arrays)


def densities(arrays):
    samples, scale, truth = (arrays[f"test/{name}"] for name in ("samples", "scale", "targets"))
    return np.exp(-np.abs(samples - truth) / scale) / (2 * scale)


def test_the_report_holds_the_metrics_of_the_stored_predictions(finished, report_of, capsys):
    report = report_of(finished)
    assert (report["experiment"], report["data"]["target"]) == ("regress", "oxygens")
    for method in ("mle", "mcd", "sgpa"):
        metrics = report["methods"][method]["metrics"]
        runs = [stored(finished, method, seed) for seed in (0, 1)]
        assert runs[0]["test/samples"].shape == ((1 if method == "mle" else 3), 3)
        errors = [np.abs(r["test/samples"].mean(0) - r["test/targets"]).mean() for r in runs]
        assert metrics["test/mae"]["values"] == pytest.approx(errors)
        losses = [-np.log(densities(run).mean(0)).mean() for run in runs]
        assert metrics["test/nll"]["values"] == pytest.approx(losses)
        constant = metrics["ood/swapped-edges/variance/auroc"]["mean"] is None
        assert constant == (method == "mle")
    together = np.concatenate([densities(stored(finished, "sgpa", seed)) for seed in (0, 1)])
    nll = report["methods"]["sgpa+ensemble"]["metrics"]["test/nll"]
    assert nll["values"] == pytest.approx([-np.log(together.mean(0)).mean()])
    assert nll["standard_error"] is None
    assert main(["classify", "--resume", "--run-dir", str(finished)]) == 1
    assert "of kind regress, and none of kind classify to resume" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_learns_to_count(molecules, tmp_path, report_of):
    more = ["--method", "mle", "--seeds", "0", "--epochs", "150", "--lr", "1e-2", "--no-ood"]
    more += ["--validate-every", "50", "--checkpoint-every", "150", "--dropout", "0"]
    assert main(arguments(molecules, *more, "--run-dir", str(tmp_path / "run"))) == 0
    # The mean absolute deviation of 0, ..., 4 is 1.2.
    metrics = report_of(tmp_path / "run")["methods"]["mle"]["metrics"]
    assert metrics["test/mae"]["mean"] < 0.6
    assert not any("ood" in name for name in metrics)
    assert stored(tmp_path / "run", "mle", 0)["test/scale"] < 0.6


# -- Losses and metrics ---------------------------------------------------------------------------

LAYOUT = TokenLayout(node_features=1, edge_features=1, identifiers=2)
MEAN, STD, SCALE, PENALTY = 3.0, 2.0, 0.7, 5.0
OUTPUTS = (0.5, -1.0, 2.0)
TARGETS = torch.tensor([4.0, 0.0, 7.0], dtype=torch.float64)


class FirstNumber(nn.Module):
    """Returns the first number of each sequence, and a fixed penalty; keeps what it was given."""

    def __init__(self):
        super().__init__()
        self.bias, self.seen = nn.Parameter(torch.zeros(())), []

    def forward(self, tokens, *, generator=None, num_samples=None):
        self.seen.append(tokens)
        return TransformerOutput(tokens[:, 0, :1] + self.bias, torch.tensor(PENALTY))


def batch():
    tokens = torch.zeros(len(OUTPUTS), 5, LAYOUT.width)
    tokens[:, :3] = 1.0
    tokens[:, 0, 0] = torch.tensor(OUTPUTS)
    return tokens, TARGETS


@pytest.mark.parametrize(("weight", "added"), [(None, 0.0), (lambda p: 2.0 * p, 0.6 * PENALTY)])
def test_the_loss_is_the_laplace_nll_of_standardised_targets_and_the_weighted_penalty(
    weight, added
):
    model = RegressionModel(FirstNumber(), LaplaceLikelihood(SCALE))
    step = TrainStep(0, 0, 0.3, torch.Generator())
    found = regression_loss(LAYOUT, (MEAN, STD), model.likelihood, weight, model, batch(), step)
    errors = np.abs((TARGETS.numpy() - MEAN) / STD - OUTPUTS)
    expected = np.mean(np.log(2 * SCALE) + errors / SCALE)
    assert found.loss.item() == pytest.approx(expected + added, rel=1e-6)
    assert found.terms["scale"].item() == pytest.approx(STD * SCALE)
    found.loss.backward()
    # d/dlog b of log 2b + |e|/b.
    gradient = model.likelihood.raw_scale.grad.item()
    assert gradient == pytest.approx(1.0 - errors.mean() / SCALE, rel=1e-5)
    # Padding is cut off, and eigenvectors have new signs, the same at both ends of an edge.
    (seen,) = model.transformer.seen
    assert torch.equal(seen.abs(), batch()[0][:, :3].abs())
    signs = seen[:, 1, 2:6]
    assert (signs < 0).any()
    assert torch.equal(signs[:, :2], signs[:, 2:])
    assert (seen[:, 1, [0, 1, 6, 7]] == 1).all()
