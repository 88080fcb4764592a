"""A deviation of a trained model on real data: better calibrated on clean and on noisy digits."""

import pytest
import torch
from torch import nn

from probseq.metrics import expected_calibration_error
from probseq.transformers import deviations, sample_predictions
from sgpa import calibrate, replace_attention

pytestmark = pytest.mark.slow


class DigitTransformer(nn.Module):
    """Two blocks of width 32 on the 16 patches of 8x8 images, from 0 to 1."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(4, 32)
        self.positions = nn.Parameter(0.1 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        norm = nn.LayerNorm(32)
        self.encoder = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, images):
        patches = images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(1, 2).flatten(2)
        return self.head(self.encoder(self.embedding(patches) + self.positions).mean(1))


def trained(images, labels):
    model = DigitTransformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        for rows in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval()


def scores(probs, labels):
    """NLL and ECE."""
    nll = nn.functional.nll_loss(probs.log(), labels)
    return float(nll), float(expected_calibration_error(probs, labels))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_variance_from_validation_data_calibrates_digits(seed):
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    images = torch.tensor(data.images, dtype=torch.float32) / 16.0
    labels = torch.tensor(data.target)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        order = torch.randperm(len(images))
        train, validation, test = order[:500], order[500:800], order[800:]
        model = trained(images[train], labels[train])
    held_out = [(images[validation], labels[validation])]
    noise = torch.randn(images[test].shape, generator=torch.Generator().manual_seed(seed))
    cases = {"clean": images[test], "noisy": images[test] + 0.6 * noise}
    with torch.no_grad():
        before = {n: scores(model(x).softmax(-1), labels[test]) for n, x in cases.items()}
    found = calibrate(model, images[train], held_out, seed=seed)
    sigma = found.candidates["deviation"].deviation
    if not found.candidates[found.chosen].deviation:  # a temperature may be better still
        generator = torch.Generator().manual_seed(seed)
        replace_attention(model, calibration=images[train], rho=0.1, generator=generator)
    for process in deviations(model).values():
        process.set_deviation(sigma)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        after = {
            name: scores(
                sample_predictions(model, x, num_samples=20, generator=generator)
                .softmax(-1)
                .mean(0),
                labels[test],
            )
            for name, x in cases.items()
        }
    assert after["clean"][0] <= before["clean"][0] - 0.01
    assert after["clean"][1] <= 0.06
    assert after["noisy"][1] <= before["noisy"][1] - 0.10
