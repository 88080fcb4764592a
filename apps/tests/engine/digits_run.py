"""A small real task, for tests in this process and in others."""

import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import LossParts


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
        self.noise, self.hook, self.calls = noise, hook, 0

    def loss(self, model, batch, step):
        self.calls += 1
        pixels, labels = batch
        x = pixels.float() / 16
        if self.noise:
            x = x + self.noise * torch.randn(x.shape, generator=step.generator, device=x.device)
        cross_entropy = nn.functional.cross_entropy(model(x), labels)
        penalty = step.progress * 1e-3 * self.model.head.weight.square().sum()
        loss = cross_entropy + penalty
        if self.hook is not None:
            loss = self.hook(self, loss)
        return LossParts(loss, {"cross_entropy": cross_entropy, "penalty": penalty})

    def score(self, model, batches):
        right = total = 0
        for pixels, labels in batches:
            right += (model(pixels.float() / 16).argmax(-1) == labels).sum().item()
            total += len(labels)
        return {"accuracy": right / total, "examples": total}


def digits(num_train: int = 203):
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = torch.tensor(pixels, dtype=torch.uint8), torch.tensor(labels)
    end = num_train + 150
    return (pixels[:num_train], labels[:num_train]), (pixels[num_train:end], labels[num_train:end])


def settings(**changes) -> TrainConfig:
    values = {"epochs": 3, "batch_size": 32, "learning_rate": 1e-2, "warmup_epochs": 1}
    return TrainConfig.from_dict(values | {"device": "cpu", "grad_clip": 1.0} | changes)


def train(task, data, folder, config, **options):
    """Train a task with `fit`; `data` are training and held-out tensors, or None for the latter."""
    train, held_out = data
    options |= {"loss": task.loss, "score": None if held_out is None else task.score}
    return fit(task.model, train, config, folder, held_out=held_out, **options)


def fit_here(folder, *, deterministic=False, num_train=203, hook=None):
    """Train the task with or without noise; returns the weights."""
    noise = 0.0 if deterministic else 0.1
    task = DigitsTask(noise=noise, dropout=noise, hook=hook)
    train(task, digits(num_train), folder, settings())
    return task.model.state_dict()


def train_elsewhere(folder, environment, *, delay=0.0, **options):
    """Body of another process: train with the environment that torchrun would give it."""
    os.environ.update({name: str(value) for name, value in environment.items()})
    fit_here(folder, hook=lambda _, loss: time.sleep(delay) or loss, **options)


def at_step(step, action):
    def hook(task, loss):
        return action(loss) if task.calls == step else loss

    return hook


def interrupt(*signums):
    def send(loss):
        for signum in signums:
            os.kill(os.getpid(), signum)
        return loss

    return send


def same_bits(a, b):
    left, right = a.model.state_dict(), b.model.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
