"""`probseq generate run`: tokenizers, tokens, priors, samples and metrics of all arms."""

from functools import partial
from typing import Any, NamedTuple

from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed
from probseq_apps.experiment import Job, Results
from probseq_apps.experiments.drawn import image_facts
from probseq_apps.experiments.generate_arms import Arm, run_name
from probseq_apps.experiments.generate_draw import draw_run, restore_samples
from probseq_apps.experiments.generate_files import PARTS, read_result, reference_file
from probseq_apps.experiments.generate_groups import StemName
from probseq_apps.experiments.generate_models import told_steps
from probseq_apps.experiments.generate_prior import check_prior
from probseq_apps.experiments.generate_ruler import Ruler, check_features, make_ruler
from probseq_apps.experiments.generate_settings import GENERATE, GenerateSettings
from probseq_apps.experiments.generate_steps import floor_result, run_arm
from probseq_apps.experiments.generate_tokenizer import (
    check_tokenizer,
    load_images,
    tokenizer_config,
)
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.generate import tokens_report
from probseq_apps.report.results import FLOOR


class Column(NamedTuple):
    """An arm of the comparison with a stem and a seed."""

    arm: Arm
    stem: StemName
    seed: int


class Generate:
    """Tokenizers and priors of several arms.

    Args:
        settings: what to compare.
    """

    kind, command, parts, brief = GENERATE, "generate run", PARTS, False

    def __init__(self, settings: GenerateSettings) -> None:
        self.settings = settings
        self._columns = {
            Job(f"{arm.name}-{stem}", seed): Column(arm, stem, seed)
            for seed in settings.seeds
            for stem in settings.stem
            for arm in settings.arms
        }
        self.jobs = list(self._columns)
        self._ruler: Ruler | None = None

    def load(self, options: Options) -> GenerationData:
        """Read the images."""
        return load_images(self.settings.one_tokenizer(*self._columns[self.jobs[0]]), options)

    def check(self, data: GenerationData) -> None:
        """Raise if the settings don't fit the images, or a file of weights is not there."""
        settings = self.settings
        for column in self._columns.values():
            if column.seed == settings.seeds[0]:
                one = settings.one_tokenizer(*column)
                check_tokenizer(one, data)
                if settings.has_priors(column.arm, column.stem):
                    for prior in settings.priors.prior:
                        grid = tokenizer_config(one, data).grid
                        check_prior(settings.one_prior("", prior, column.seed), grid)
        check_features(settings.evaluation.features)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs, after one about images that are asked for in vain."""
        settings = self.settings
        device = distributed.resolve_device(settings.machine.device)
        arms = ", ".join(arm.name for arm in settings.arms)
        asked = settings.evaluation.num_images
        if asked is not None and asked > len(data.test):
            note = f"num_images={asked:,}: all {len(data.test):,} test images are reconstructed\n"
        else:
            note = ""
        return (
            f"{note}{data.name}: {len(data.train):,} training and {len(data.test):,} test images "
            f"of {data.channels}x{data.image_size}x{data.image_size}; {arms}; stems "
            f"{', '.join(settings.stem)}; {told_steps(settings.training.steps)} each, on {device}"
        )

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train, draw and measure all that an arm has."""
        ruler, column = self._make_ruler(data, at), self._columns[job]
        return run_arm(self.settings, data, at.path, *column, *ruler, recipe=at.recipe)

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Measure the floors, write the report, and return it as text."""
        settings = self.settings
        if not reference_file(at.path).exists():
            self._make_ruler(data, at)
        # Patch k-means knows no stem: a floor for each arm and seed.
        floors = [
            at.once(
                run_name(column.arm.name, FLOOR, column.seed),
                partial(self._floor, column, data, at),
            )
            for column in self._columns.values()
            if column.stem == settings.stem[0]
        ]
        restore_samples(settings, at.path)
        found, real = list(results.values()), read_result(reference_file(at.path))
        return tokens_report(
            found,
            floors,
            real,
            settings=settings.to_dict(),
            data=image_facts(data),
            recipe=at.recipe,
            plots=lambda _: draw_run(settings, data, at.path, found, floors, real),
        ).write(at.path)

    def _floor(self, column: Column, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        return floor_result(self.settings, data, *column, self._make_ruler(data, at).extractor)

    def _make_ruler(self, data: GenerationData, at: RunFolder) -> Ruler:
        if self._ruler is None:
            features, machine = self.settings.evaluation.features, self.settings.machine
            self._ruler = make_ruler(data, features, at.path, device=machine.device)
        return self._ruler
