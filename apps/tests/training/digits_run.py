"""A small real task, for tests in this process and, as a script, in others."""

import argparse
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from probseq_apps.training.config import TrainConfig
from probseq_apps.training.loop import fit
from probseq_apps.training.task import LossParts


class SharedNormNet(nn.Module):
    """Two hidden layers that share one LayerNorm, with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        norm = nn.LayerNorm(16)
        self.layers = nn.Sequential(
            nn.Linear(64, 16), norm, nn.ReLU(), nn.Linear(16, 16), norm, nn.Dropout(dropout)
        )
        self.head = nn.Linear(16, 10)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.head(self.layers(x))


class DigitsTask:
    """Digits with noise on the pixels; without noise and dropout it is deterministic."""

    def __init__(self, *, noise: float = 0.1, dropout: float = 0.1, hook=None) -> None:
        torch.manual_seed(3)
        self.model = SharedNormNet(dropout)
        self.noise = noise
        self.hook = hook
        self.calls = 0

    def loss(self, model, batch, *, progress, generator):
        self.calls += 1
        pixels, labels = batch
        x = pixels.float() / 16
        if self.noise:
            x = x + self.noise * torch.randn(x.shape, generator=generator, device=x.device)
        cross_entropy = nn.functional.cross_entropy(model(x), labels)
        penalty = progress * 1e-3 * self.model.head.weight.square().sum()
        loss = cross_entropy + penalty
        if self.hook is not None:
            loss = self.hook(self, loss)
        return LossParts(
            loss, {"cross_entropy": cross_entropy.detach(), "penalty": penalty.detach()}
        )

    def score(self, model, batches):
        right = total = 0
        for pixels, labels in batches:
            right += (model(pixels.float() / 16).argmax(-1) == labels).sum().item()
            total += len(labels)
        return right / total


def digits(num_train: int = 203):
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = torch.tensor(pixels, dtype=torch.uint8), torch.tensor(labels)
    end = num_train + 150
    return (pixels[:num_train], labels[:num_train]), (pixels[num_train:end], labels[num_train:end])


def settings(**changes) -> TrainConfig:
    values = {
        "epochs": 3,
        "batch_size": 32,
        "learning_rate": 1e-2,
        "warmup_epochs": 1,
        "device": "cpu",
        "grad_clip": 1.0,
    }
    return TrainConfig.from_dict(values | changes)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num-train", type=int, default=203)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    def wait(_, loss):
        time.sleep(arguments.delay)
        return loss

    noise = 0.0 if arguments.deterministic else 0.1
    task = DigitsTask(noise=noise, dropout=noise, hook=wait)
    config = settings(epochs=arguments.epochs)
    train, validation = digits(arguments.num_train)
    fit(
        task,
        train,
        validation,
        config,
        arguments.run_dir,
        resume=arguments.resume,
        progress=False,
    )


if __name__ == "__main__":
    main()
