"""`probseq online vae`: learn many channels task by task with a GP-VAE, see what it forgets."""

import json
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from ohsvgp import LegS, OnlineSVGPVAE, PivotedCholesky, RandomSubset
from ohsvgp.bases import Basis
from ohsvgp.plots import frames_plot
from ohsvgp.vae import MLPDecoder, MLPEncoder, SharedSet
from probseq.kernels import RBF
from probseq.metrics import rmse
from probseq_apps.data.names import own_path
from probseq_apps.data.series import ChannelSeries, moving_digits, read_csv_channels
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import save_arrays, write_atomic
from probseq_apps.experiment import Experiment, Job, Results, by_row, counted
from probseq_apps.experiments.online import kept, scores
from probseq_apps.experiments.streams import Task, cut_channels
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.online import metric_figures, online_report
from probseq_apps.settings.online import ONLINE_VAE, VAE_METHODS, OnlineVaeSettings, VaeSettings

FRAMES = "frames"
# Entries of a checkpoint that are no part of the model.
_EXTRA = "extra."

# A series, and its tasks as each seed sees them.
Data = tuple[ChannelSeries, dict[int, tuple[Task, ...]]]


class OnlineVae(Experiment[Data]):
    """Methods on the channels of a series, split anew by each seed."""

    kind, command, parts, brief = ONLINE_VAE, "online vae", ("models", FRAMES), True

    def __init__(self, settings: OnlineVaeSettings) -> None:
        self.settings = settings
        self.jobs = [Job(row, seed) for seed in settings.seeds for row in settings.method]
        self._warm = False

    def load(self, options: Options) -> Data:
        """Read the series, as each seed sees it."""
        if options.download:
            raise ValueError("download must be off: the data of `online vae` are read from files")
        stream, path = self.settings.stream, own_path(self.settings.data)
        series = (
            moving_digits(stream.num_frames)
            if path is None
            else read_csv_channels(path, time_column=stream.time_column)
        )
        seeds = self.settings.seeds
        return series, {seed: cut_channels(series, stream, seed=seed) for seed in seeds}

    def describe(self, data: Data) -> str:
        """Return a line about data and jobs."""
        series, settings = data[0], self.settings
        train, test = (sum(sizes) for sizes in _sizes(data[1][settings.seeds[0]]))
        return (
            f"{series.name}: {len(series.channels)} channels, {train:,} time steps in "
            f"{settings.stream.num_tasks} tasks, {test:,} for evaluation; "
            f"{counted(settings.method, settings.seeds)}"
        )

    def run(self, job: Job, data: Data, at: RunFolder) -> dict[str, Any]:
        """Let a method learn the series from where it stopped, and return what was measured."""
        if not self._warm:
            _warm_up(self.settings.model)
            self._warm = True
        file, tasks = at.path / "models" / f"{job.name}.safetensors", data[1][job.seed]
        file.parent.mkdir(exist_ok=True)
        training, samples = self.settings.training, self.settings.training.prediction_samples
        model = build_vae(job.row, len(data[0].channels), self.settings.model, seed=job.seed)
        records, extra = load_progress(file, model)
        learned = list(extra.get("learned", ()))
        for number, task in enumerate(tasks[len(records) :], len(records) + 1):
            start = time.perf_counter()
            try:
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
            except (ValueError, ArithmeticError, RuntimeError) as error:
                where = f"{job.row}, seed {job.seed}, task {number}"
                raise RuntimeError(f"{where}: {error}") from error
            seconds = time.perf_counter() - start
            generator = torch.Generator().manual_seed(derive_seed(job.seed, "predictions", number))
            each, over = measure(model, tasks[:number], samples, generator)
            # The middle test step of each task, right after the task and after each later one.
            times = torch.stack([past.test_x[shown(past)] for past in tasks[:number]])
            last = model.predict(times, num_samples=samples, generator=generator).mean
            learned.append(last[-1])
            lost = float(info.lost_information.sum())
            records.append({"each": each, "over": over, "seconds": seconds, "lost": lost})
            extra = {"learned": torch.stack(learned), "last": last}
            save_progress(file, model, records, extra)
        truth = torch.stack([task.test_y[shown(task)] for task in tasks])
        save_arrays(at.path / FRAMES / f"{job.name}.npz", {"truth": truth, **extra})
        return scores(records, len(tasks))

    def report(self, data: Data, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        settings, runs, series = self.settings, by_row(results), data[0]
        model, frame = settings.model, series.frame
        train, test = _sizes(data[1][settings.seeds[0]])
        unit = (
            "standard deviations of the channel in the first task"
            if frame is None
            else "grey levels of [0, 1]"
        )
        report = online_report(
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
                "train": train,
                "test": test,
                "notes": list(series.notes),
            },
            opening=(
                f"{len(series.channels)} channels, {sum(train):,} time steps in {len(train)} "
                f"tasks, {sum(test):,} for evaluation; the trained models are in `models/`."
            ),
            facts=[
                f"M = {model.num_inducing}, {model.num_latents} latents; old posterior carried "
                f"along: {'yes' if model.carry else 'no'}; weight of elastic weight consolidation "
                f"{model.consolidation:g}",
                f"errors are in {unit}",
            ],
            seconds="all training",
            figures=lambda: {
                **metric_figures(runs, standardised=frame is None),
                **({"frames": frames_plot(kept(self, data, at), frame)} if frame else {}),
            },
        )
        return report.write(at.path)


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


def measure(
    model: OnlineSVGPVAE, tasks: Sequence[Task], num_samples: int, generator: torch.Generator
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return NLPD and RMSE per value on the test steps of each task, and on all of them."""
    t = torch.cat([task.test_x for task in tasks])
    y = torch.cat([task.test_y for task in tasks])
    mean = model.predict(t, num_samples=num_samples, generator=generator).mean
    density = model.log_prob(t, y, num_samples=num_samples, generator=generator)

    def metrics(part: slice) -> dict[str, float]:
        return {"nlpd": -float(density[part].mean()), "rmse": float(rmse(mean[part], y[part]))}

    ends = torch.tensor([0, *(len(task.test_x) for task in tasks)]).cumsum(0).tolist()
    return [metrics(slice(*pair)) for pair in pairwise(ends)], metrics(slice(None))


def shown(task: Task) -> int:
    """Return the position of the test step of a task that pictures show."""
    return len(task.test_x) // 2


def save_progress(
    path: Path,
    model: OnlineSVGPVAE,
    records: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Tensor],
) -> None:
    """Write a model, further tensors, and what was measured so far, all or nothing."""
    tensors = dict(model.state_dict()) | {f"{_EXTRA}{name}": x for name, x in extra.items()}
    content = {name: tensor.contiguous() for name, tensor in tensors.items()}
    told = {"records": json.dumps(list(records), allow_nan=False)}
    write_atomic(path, save(content, metadata=told))


def load_progress(
    path: Path, model: OnlineSVGPVAE
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Take over what `save_progress` wrote: records and further tensors; none without a file."""
    if not path.exists():
        return [], {}
    try:
        tensors = load_file(path)
        with safe_open(path, framework="pt") as file:
            records = json.loads(file.metadata()["records"])
        extra = {n: tensors.pop(n) for n in list(tensors) if n.startswith(_EXTRA)}
        model.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}; delete it to repeat the run") from error
    model.eval()
    return records, {name.removeprefix(_EXTRA): tensor for name, tensor in extra.items()}


def _sizes(tasks: Sequence[Task]) -> tuple[list[int], list[int]]:
    return [len(task.x) for task in tasks], [len(task.test_x) for task in tasks]


def _warm_up(settings: VaeSettings) -> None:
    """Pay for what torch does at its first use, so that it isn't the first method's time."""
    model = build_vae("ohsvgp", 2, settings, seed=0)
    t = torch.linspace(0.0, 1.0, 4)
    model.fit_task(t, torch.stack([t, -t], dim=-1), epochs=1, learn_kernel=True)
