"""`probseq generate run`: tokenizers, tokens, priors, samples and metrics of all arms."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.drawn import image_facts
from probseq_apps.experiments.folders import check_folder, default_folder
from probseq_apps.experiments.generate_arms import Arm, run_name
from probseq_apps.experiments.generate_draw import draw_run, restore_samples
from probseq_apps.experiments.generate_files import (
    PARTS,
    read_result,
    reference_file,
    result_file,
    write_result,
)
from probseq_apps.experiments.generate_groups import StemName
from probseq_apps.experiments.generate_models import told_steps
from probseq_apps.experiments.generate_prior import check_prior
from probseq_apps.experiments.generate_ruler import check_features, make_ruler
from probseq_apps.experiments.generate_settings import (
    GENERATE,
    GenerateSettings,
    generate_config,
)
from probseq_apps.experiments.generate_steps import floor_result, run_arm
from probseq_apps.experiments.generate_stop import tell_how_to_resume
from probseq_apps.experiments.generate_tokenizer import (
    check_tokenizer,
    load_images,
    tokenizer_config,
)
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.experiments.task_runs import make_parts, prepare_folder
from probseq_apps.report.generate import tokens_report
from probseq_apps.report.results import FLOOR
from probseq_apps.training import distributed
from probseq_apps.training.runs import sole_use


class Job(NamedTuple):
    """An arm of the comparison with a stem and a seed."""

    arm: Arm
    stem: StemName
    seed: int


def generate(
    settings: GenerateSettings, options: RunOptions, *, recipe: str = "digits-small"
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
        NonFiniteLossError: a loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    torch.set_num_threads(options.threads)
    if options.run_dir is not None:
        check_folder(options.run_dir, options, experiment=GENERATE)
    jobs = list(_jobs(settings))
    data = load_images(settings.one_tokenizer(*jobs[0]), options)
    _check(settings, data)
    folder = options.run_dir or default_folder(GENERATE, settings.data)
    config = generate_config(recipe, settings)
    prepare_folder(folder, config, options, experiment=GENERATE, parts=PARTS)
    with sole_use(folder):
        make_parts(folder, PARTS)
        _announce(settings, data, folder)
        with tell_how_to_resume("run", folder, options):
            _run_jobs(settings, data, folder, jobs, recipe)
            restore_samples(settings, folder)
            print(_report(settings, data, folder, jobs, recipe))
    return folder


def _jobs(settings: GenerateSettings) -> Iterator[Job]:
    for seed in settings.seeds:
        for stem in settings.stem:
            for arm in settings.arms:
                yield Job(arm, stem, seed)


def _check(settings: GenerateSettings, data: GenerationData) -> None:
    """Refuse what would fail after hours.

    Raises:
        ValueError: the settings don't fit the images.
        OSError: a file of weights is not there.
    """
    for job in _jobs(settings):
        if job.seed == settings.seeds[0]:
            one = settings.one_tokenizer(*job)
            check_tokenizer(one, data)
            if settings.has_priors(job.arm, job.stem):
                for prior in settings.priors.prior:
                    grid = tokenizer_config(one, data).grid
                    check_prior(settings.one_prior("", prior, job.seed), grid)
    check_features(settings.evaluation.features)


def _run_jobs(
    settings: GenerateSettings, data: GenerationData, folder: Path, jobs: list[Job], recipe: str
) -> None:
    """All arms of all seeds that have no results yet."""
    floors = _floors(settings, jobs)
    files = [result_file(folder, job.arm.name, job.stem, job.seed) for job in jobs]
    files += [result_file(folder, job.arm.name, FLOOR, job.seed) for job in floors]
    if all(file.exists() for file in [*files, reference_file(folder)]):
        print("all arms were finished before", flush=True)
        return
    ruler = make_ruler(data, settings.evaluation.features, folder, device=settings.machine.device)
    for number, job in enumerate(jobs, 1):
        file = result_file(folder, job.arm.name, job.stem, job.seed)
        state = ": finished before" if file.exists() else ""
        name = run_name(job.arm.name, job.stem, job.seed)
        print(f"[{number}/{len(jobs)}] {name}{state}", flush=True)
        if not file.exists():
            found = run_arm(settings, data, folder, *job, *ruler, recipe=recipe)
            write_result(file, found)
    for job in floors:
        file = result_file(folder, job.arm.name, FLOOR, job.seed)
        if not file.exists():
            write_result(file, floor_result(settings, data, *job, ruler.extractor))


def _floors(settings: GenerateSettings, jobs: list[Job]) -> list[Job]:
    """Patch k-means knows no stem: a floor for each arm and seed."""
    return [job for job in jobs if job.stem == settings.stem[0]]


def _report(
    settings: GenerateSettings,
    data: GenerationData,
    folder: Path,
    jobs: list[Job],
    recipe: str,
) -> str:
    results = [read_result(result_file(folder, j.arm.name, j.stem, j.seed)) for j in jobs]
    floors = [
        read_result(result_file(folder, job.arm.name, FLOOR, job.seed))
        for job in _floors(settings, jobs)
    ]
    real = read_result(reference_file(folder))
    return tokens_report(
        results,
        floors,
        real,
        settings=settings.to_dict(),
        data=image_facts(data),
        recipe=recipe,
        plots=lambda _: draw_run(settings, data, folder, results, floors, real),
    ).write(folder)


def _announce(settings: GenerateSettings, data: GenerationData, folder: Path) -> None:
    device = distributed.resolve_device(settings.machine.device)
    arms = ", ".join(arm.name for arm in settings.arms)
    asked = settings.evaluation.num_images
    if asked is not None and asked > len(data.test):
        print(f"num_images={asked:,}: all {len(data.test):,} test images are reconstructed")
    print(
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test images of "
        f"{data.channels}x{data.image_size}x{data.image_size}; {arms}; stems "
        f"{', '.join(settings.stem)}; {told_steps(settings.training.steps)} each, on {device} "
        f"-> {folder}",
        flush=True,
    )
