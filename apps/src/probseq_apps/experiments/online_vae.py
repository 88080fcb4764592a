"""`probseq online vae`: learn many channels task by task with a GP-VAE, see what it forgets."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from probseq_apps.experiments.folders import check_folder, default_folder
from probseq_apps.experiments.online_vae_evaluation import (
    first_frames,
    measure,
    results_of,
    shown,
)
from probseq_apps.experiments.online_vae_model import build_vae, load_progress, save_progress
from probseq_apps.experiments.online_vae_report import FRAMES, make_report
from probseq_apps.experiments.online_vae_settings import (
    ONLINE_VAE,
    OnlineVaeSettings,
    online_vae_config,
)
from probseq_apps.experiments.online_vae_tasks import ChannelStream, load_channels, make_stream
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.experiments.stored import save_arrays
from probseq_apps.experiments.task_runs import (
    RESULTS,
    counted,
    make_parts,
    prepare_folder,
    read_results,
    results_file,
    write_results,
)
from probseq_apps.training.runs import sole_use
from probseq_apps.training.schedule import derive_seed

MODELS = "models"
_PARTS = (RESULTS, MODELS, FRAMES)


def online_vae(
    settings: OnlineVaeSettings, options: RunOptions, *, recipe: str = "moving-digits-small"
) -> Path:
    """Run the comparison and write its report.

    Everything that can be refused is refused before anything is written.

    Args:
        settings: what to compare.
        options: files and running.
        recipe: name of the recipe that the settings came from, for the report.

    Returns:
        The experiment's folder.

    Raises:
        ValueError: data, settings and folder don't go together.
        OSError: a file cannot be read or written.
        RuntimeError: a method failed; the message names it.
    """
    torch.set_num_threads(options.threads)
    if options.run_dir is not None:
        check_folder(options.run_dir, options, experiment=ONLINE_VAE)
    if options.download:
        raise ValueError("download must be off: the data of `online vae` are read from files")
    series = load_channels(settings)
    streams = {seed: make_stream(series, settings, seed=seed) for seed in settings.seeds}
    folder = options.run_dir or default_folder(ONLINE_VAE, settings.data)
    config = online_vae_config(recipe, settings)
    prepare_folder(folder, config, options, experiment=ONLINE_VAE, parts=_PARTS)
    with sole_use(folder):
        stream = streams[settings.seeds[0]]
        _announce(settings, stream, folder)
        _run_all(settings, streams, folder)
        runs = read_results(folder, settings.method, settings.seeds)
        print(make_report(folder, settings, stream, runs, recipe=recipe).write(folder))
    return folder


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


def _run_all(settings: OnlineVaeSettings, streams: dict[int, ChannelStream], folder: Path) -> None:
    make_parts(folder, _PARTS)
    _warm_up(settings)
    jobs = [(seed, method) for seed in settings.seeds for method in settings.method]
    with tqdm(jobs, unit=" runs", leave=False, disable=None) as bar:
        for seed, method in bar:
            bar.set_description_str(f"{method}, seed {seed}")
            if results_file(folder, method, seed).exists():
                continue
            progress = folder / MODELS / f"{method}-seed{seed}.safetensors"
            found, pictures = run_method(method, streams[seed], settings, progress, seed=seed)
            save_arrays(folder / FRAMES / f"{method}-seed{seed}.npz", pictures)
            write_results(folder, method, seed, found)


def _warm_up(settings: OnlineVaeSettings) -> None:
    """Pay for what torch does at its first use, so that it isn't the first method's time."""
    model = build_vae("ohsvgp", 2, settings.model, seed=0)
    t = torch.linspace(0.0, 1.0, 4)
    model.fit_task(t, torch.stack([t, -t], dim=-1), epochs=1, learn_kernel=True)


def _announce(settings: OnlineVaeSettings, stream: ChannelStream, folder: Path) -> None:
    train = sum(len(task.t) for task in stream.tasks)
    test = sum(len(task.test_t) for task in stream.tasks)
    print(
        f"{stream.series.name}: {len(stream.series.channels)} channels, {train:,} time steps in "
        f"{len(stream.tasks)} tasks, {test:,} for evaluation; "
        f"{counted(settings.method, settings.seeds)} -> {folder}",
        flush=True,
    )
