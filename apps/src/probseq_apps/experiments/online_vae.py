"""`probseq online vae`: learn many channels task by task with a GP-VAE, see what it forgets."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ohsvgp import LegS, OnlineSVGPVAE, PivotedCholesky, RandomSubset
from ohsvgp.bases import Basis
from ohsvgp.plots import frames_plot
from ohsvgp.tasks import Task, cut_channels, measure_tasks, scores
from ohsvgp.vae import MLPDecoder, MLPEncoder, SharedSet
from probseq.files import Format, read_tensors, write_tensors
from probseq.kernels import RBF
from probseq.metrics import rmse
from probseq_apps.data.names import user_path
from probseq_apps.data.series import ChannelSeries, moving_digits, read_csv_channels, rotated_mnist
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import save_arrays
from probseq_apps.experiment import Job, Results, RunFolder, Workflow, by_row, counted
from probseq_apps.experiments import online
from probseq_apps.options import Options
from probseq_apps.report.online import online_report
from probseq_apps.settings.online import (
    MOVING_DIGITS,
    ONLINE_VAE,
    VAE_METHODS,
    OnlineVaeSettings,
    VaeSettings,
)

MODELS, FRAMES = "models", "frames"
_EXTRA = "extra."  # entries of progress that are not of the model
_FORMAT = Format("progress of an online VAE", 3)


class Channels:
    """A series, its tasks as each seed sees them, and whether torch's first use is paid for."""

    def __init__(self, series: ChannelSeries, tasks: Mapping[int, tuple[Task, ...]]) -> None:
        self.series, self.tasks, self.warm = series, tasks, False


def load(settings: OnlineVaeSettings, options: Options) -> Channels:
    """Read the series, as each seed sees it; pixels stay as they are."""
    if options.download:
        raise ValueError("download must be off: the data of `online vae` are read from files")
    stream, path = settings.stream, user_path(settings.data)
    if path is not None:
        series = read_csv_channels(path, stream.time)
    elif settings.data == MOVING_DIGITS:
        series = moving_digits(stream.num_frames)
    else:
        series = rotated_mnist(stream.num_frames, options.data_dir)
    tasks = {
        seed: cut_channels(
            series.time,
            series.values,
            num_tasks=stream.num_tasks,
            task_length=stream.task_length,
            test_share=stream.test_share,
            rng=np.random.default_rng(derive_seed(seed, "test steps")),
            standardise=series.frame is None,
        )
        for seed in settings.seeds
    }
    return Channels(series, tasks)


def describe(settings: OnlineVaeSettings, data: Channels) -> str:
    """Return a line about data and jobs."""
    points = online.extent(data.tasks[settings.seeds[0]], "time steps")
    compared = counted(settings.method, settings.seeds)
    return f"{data.series.name}: {len(data.series.channels)} channels, {points}; {compared}"


def learn_channels(
    settings: OnlineVaeSettings, data: Channels, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Let a method learn the series from where it stopped, and return what was measured."""
    training, channels = settings.training, len(data.series.channels)
    if not data.warm:
        _warm_up(settings.model)
        data.warm = True
    file, tasks = at.path / MODELS / f"{job.name}.safetensors", data.tasks[job.seed]
    samples = training.prediction_samples
    model = build_vae(job.row, channels, settings.model, seed=job.seed)
    records, extra = load_progress(file, model)
    learned = list(extra.get("learned", ()))
    for number, task in enumerate(tasks[len(records) :], len(records) + 1):
        start = time.perf_counter()
        with online.naming(job, number):
            info = model.fit_task(
                task.x,
                task.y,
                epochs=training.epochs,
                batch_size=training.batch_size,
                learning_rate=training.learning_rate,
                num_samples=training.num_samples,
                learn_kernel=number == 1,
                learn_inducing=job.row == "osvgp",
            )
        seconds = time.perf_counter() - start
        generator = torch.Generator().manual_seed(derive_seed(job.seed, "predictions", number))
        each, over = evaluate_vae(model, tasks[:number], samples, generator)
        # The middle test step of each task, right after the task and after each later one.
        times = torch.stack([past.test_x[middle_step(past)] for past in tasks[:number]])
        last = model.predict(times, num_samples=samples, generator=generator).mean
        learned.append(last[-1])
        lost = float(info.lost_information.sum())
        records.append({"each": each, "over": over, "seconds": seconds, "lost": lost})
        extra = {"learned": torch.stack(learned), "last": last}
        save_progress(file, model, records, extra)
    truth = torch.stack([task.test_y[middle_step(task)] for task in tasks])
    save_arrays(at.path / FRAMES / f"{job.name}.npz", {"truth": truth, **extra})
    return scores(records, len(tasks))


def evaluate_vae(
    model: OnlineSVGPVAE, tasks: Sequence[Task], num_samples: int, generator: torch.Generator
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return NLPD and RMSE per value on the test steps of each task, and on all of them."""
    t, y = (torch.cat([task[index] for task in tasks]) for index in (2, 3))
    mean = model.predict(t, num_samples=num_samples, generator=generator).mean
    density = model.log_prob(t, y, num_samples=num_samples, generator=generator)
    return measure_tasks(
        tasks, lambda rows: {"nlpd": -density[rows].mean(), "rmse": rmse(mean[rows], y[rows])}
    )


def save_progress(
    path: Path,
    model: OnlineSVGPVAE,
    records: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Tensor],
) -> None:
    """Write a model, what was measured so far, and further tensors."""
    tensors = dict(model.state_dict()) | {f"{_EXTRA}{name}": x for name, x in extra.items()}
    write_tensors(path, _FORMAT, {"records": list(records)}, tensors)


def load_progress(
    path: Path, model: OnlineSVGPVAE
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Take over what `save_progress` wrote: records and further tensors; none without a file."""
    if not path.exists():
        return [], {}
    head, tensors = read_tensors(path, _FORMAT)
    extra = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_EXTRA)}
    model.load_state_dict(tensors)
    model.eval()
    return head["records"], {name.removeprefix(_EXTRA): tensor for name, tensor in extra.items()}


def report(settings: OnlineVaeSettings, data: Channels, results: Results, at: RunFolder) -> str:
    """Write the report and return it as text."""
    runs, series, model = by_row(results), data.series, settings.model
    frame, tasks = series.frame, data.tasks[settings.seeds[0]]
    unit = "grey levels of [0, 1]"
    if frame is None:
        unit = "standard deviations of the channel in the first task"

    def figures(names: Mapping[str, str]) -> dict[str, Figure]:
        if frame is None:
            return {}
        stored = online.first_seed_arrays(settings, at, FRAMES)
        return {"frames": frames_plot({title: stored[n] for n, title in names.items()}, frame)}

    # Channels as series side by side.
    turned = [[Task(x, y.T, u, v.T) for x, y, u, v in of_seed] for of_seed in data.tasks.values()]

    return online_report(
        ONLINE_VAE,
        at.recipe,
        runs,
        titles={name: VAE_METHODS[name] for name in runs},
        settings=settings.to_dict(),
        data={
            "name": series.name,
            "channels": len(series.channels),
            "time": series.time_label,
            "unit": unit,
            **online.sizes(tasks),
            "notes": list(series.notes),
        },
        opening=(
            f"{len(series.channels)} channels, {online.extent(tasks, 'time steps')}; the trained "
            "models are in `models/`."
        ),
        facts=[
            f"M = {model.num_inducing}, {model.num_latents} latents; old posterior carried "
            f"along: {'yes' if model.carry else 'no'}; weight of elastic weight consolidation "
            f"{model.consolidation:g}",
            f"errors are in {unit}",
        ],
        naive=("last value of all data", [*map(online.naive_score, turned)]),
        story=("over-tasks",) if frame is None else ("frames",),
        standardised=frame is None,
        figures=figures,
    ).write(at.path)


WORKFLOW = Workflow(
    kind=ONLINE_VAE,
    command="online vae",
    folders=(MODELS, FRAMES),
    single_process="a series is learned in its order",
    brief=True,
    jobs=online.jobs_of,
    load=load,
    describe=describe,
    run=learn_channels,
    report=report,
)


def build_vae(method: str, channels: int, settings: VaeSettings, *, seed: int) -> OnlineSVGPVAE:
    """Return a model before its first task; networks start equal for all methods of a seed."""
    latents, M = settings.num_latents, settings.num_inducing
    bases: Mapping[str, Basis] = {
        "ohsvgp": LegS(M),
        "ovc": SharedSet(PivotedCholesky(M)),
        "ovc-per-dim": PivotedCholesky(M),
        "osvgp": RandomSubset(M),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "networks"))
        encoder = MLPEncoder(channels, latents, hidden=settings.hidden_dim)
        decoder = MLPDecoder(latents, channels, hidden=settings.hidden_dim)
    return OnlineSVGPVAE(
        encoder,
        decoder,
        RBF(1, batch_shape=(latents,), lengthscale=settings.lengthscale),
        bases[method],
        num_latents=latents,
        noise=settings.noise,
        carry=settings.carry,
        consolidation=settings.consolidation,
        seed=derive_seed(seed, f"model {method}"),
    )


def middle_step(task: Task) -> int:
    """Return the position of the test step of a task that pictures show."""
    return len(task.test_x) // 2


def _warm_up(settings: VaeSettings) -> None:
    """Pay for what torch does at its first use, so that it isn't the first method's time."""
    model = build_vae("ohsvgp", 2, settings, seed=0)
    t = torch.linspace(0.0, 1.0, 4)
    model.fit_task(t, torch.stack([t, -t], dim=-1), epochs=1, learn_kernel=True)
