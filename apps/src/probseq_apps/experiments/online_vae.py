"""`probseq online vae`: learn many channels task by task with a GP-VAE, see what it forgets."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiment import Job, Results, by_row, counted
from probseq_apps.experiments.online_vae_evaluation import (
    first_frames,
    measure,
    results_of,
    shown,
)
from probseq_apps.experiments.online_vae_model import build_vae, load_progress, save_progress
from probseq_apps.experiments.online_vae_report import FRAMES, make_report
from probseq_apps.experiments.online_vae_settings import ONLINE_VAE, OnlineVaeSettings
from probseq_apps.experiments.online_vae_tasks import ChannelStream, load_channels, make_stream
from probseq_apps.experiments.stored import save_arrays
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options


class OnlineVae:
    """Methods on the channels of a series, split anew by each seed.

    Args:
        settings: what to compare.
    """

    kind, command, parts, brief = ONLINE_VAE, "online vae", ("models", FRAMES), True

    def __init__(self, settings: OnlineVaeSettings) -> None:
        self.settings = settings
        self.jobs = [Job(row, seed) for seed in settings.seeds for row in settings.method]
        self._warm = False

    def load(self, options: Options) -> dict[int, ChannelStream]:
        """Read the series, as each seed sees it."""
        if options.download:
            raise ValueError("download must be off: the data of `online vae` are read from files")
        series = load_channels(self.settings)
        seeds = self.settings.seeds
        return {seed: make_stream(series, self.settings, seed=seed) for seed in seeds}

    def check(self, data: dict[int, ChannelStream]) -> None:
        """Nothing is left to check."""

    def describe(self, data: dict[int, ChannelStream]) -> str:
        """Return a line about data and jobs."""
        stream = data[self.settings.seeds[0]]
        train = sum(len(task.t) for task in stream.tasks)
        test = sum(len(task.test_t) for task in stream.tasks)
        return (
            f"{stream.series.name}: {len(stream.series.channels)} channels, {train:,} time steps "
            f"in {len(stream.tasks)} tasks, {test:,} for evaluation; "
            f"{counted(self.settings.method, self.settings.seeds)}"
        )

    def run(self, job: Job, data: dict[int, ChannelStream], at: RunFolder) -> dict[str, Any]:
        """Let a method learn the series, and return what was measured."""
        if not self._warm:
            _warm_up(self.settings)
            self._warm = True
        progress = at.path / "models" / f"{job.name}.safetensors"
        progress.parent.mkdir(exist_ok=True)
        found, pictures = run_method(
            job.row, data[job.seed], self.settings, progress, seed=job.seed
        )
        save_arrays(at.path / FRAMES / f"{job.name}.npz", pictures)
        return found

    def report(self, data: dict[int, ChannelStream], results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        stream = data[self.settings.seeds[0]]
        runs = by_row(results)
        return make_report(at.path, self.settings, stream, runs, recipe=at.recipe).write(at.path)


def run_method(
    method: str, stream: ChannelStream, settings: OnlineVaeSettings, file: Path, *, seed: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Let a method learn a stream task by task, from where it stopped.

    Args:
        method: its name.
        stream: data and split.
        settings: of the comparison.
        file: holds the model and the measurements after each task.
        seed: of the method's own draws.

    Returns:
        What was measured, and the pictures: of the middle test step of each task the truth, the
        prediction right after learning the task, and that after the last one.

    Raises:
        RuntimeError: the method failed; the message names the task.
    """
    model = build_vae(method, len(stream.series.channels), settings.model, seed=seed)
    training = settings.training
    records, extra = load_progress(file, model)
    learned: list[Tensor] = list(extra.get("learned", ()))
    last = extra.get("last")
    for number, task in enumerate(stream.tasks[len(records) :], len(records) + 1):
        start = time.perf_counter()
        try:
            info = model.fit_task(
                task.t,
                task.y,
                epochs=training.epochs,
                batch_size=training.batch_size,
                learning_rate=training.learning_rate,
                num_samples=training.num_samples,
                learn_kernel=number == 1,
                learn_inducing=method == "osvgp",
            )
        except (ValueError, ArithmeticError, RuntimeError) as error:
            raise RuntimeError(f"{method}, seed {seed}, task {number}: {error}") from error
        seconds = time.perf_counter() - start
        past, samples = stream.tasks[:number], training.prediction_samples
        generator = torch.Generator().manual_seed(derive_seed(seed, "predictions", number))
        found = measure(model, past, num_samples=samples, generator=generator)
        last = first_frames(model, past, num_samples=samples, generator=generator)
        learned.append(last[-1])
        records.append(
            {
                "each": found.each,
                "over": found.over,
                "seconds": seconds,
                "lost": float(info.lost_information.sum()),
            }
        )
        save_progress(file, model, records, {"learned": torch.stack(learned), "last": last})
    truth = torch.stack([task.test_y[shown(task)] for task in stream.tasks])
    pictures = {"truth": truth, "learned": torch.stack(learned)}
    return results_of(records, len(stream.tasks)), pictures | (
        {} if last is None else {"last": last}
    )


def _warm_up(settings: OnlineVaeSettings) -> None:
    """Pay for what torch does at its first use, so that it isn't the first method's time."""
    model = build_vae("ohsvgp", 2, settings.model, seed=0)
    t = torch.linspace(0.0, 1.0, 4)
    model.fit_task(t, torch.stack([t, -t], dim=-1), epochs=1, learn_kernel=True)
