"""One arm of `probseq generate run`, from tokenizer to metrics; each step goes on where it was."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probseq.metrics.image import FeatureExtractor, FeatureMoments
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine import distributed
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import fork_random
from probseq_apps.experiments.generate_arms import Arm, prior_name, run_name
from probseq_apps.experiments.generate_evaluation import (
    evaluate_generation,
    evaluate_reconstruction,
)
from probseq_apps.experiments.generate_files import (
    prior_folder,
    samples_file,
    tokenizer_folder,
    tokens_folder,
)
from probseq_apps.experiments.generate_groups import StemName
from probseq_apps.experiments.generate_prior import (
    Prior,
    make_tokens,
    train_prior,
)
from probseq_apps.experiments.generate_prior_groups import PriorName
from probseq_apps.experiments.generate_sample import Samples, draw_samples
from probseq_apps.experiments.generate_settings import GenerateSettings
from probseq_apps.experiments.generate_tokenizer import (
    TrainedTokenizer,
    tokenizer_config,
    train_tokenizer,
    video_config,
)
from probseq_apps.report.results import FLOOR
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.token_cache import TokenCache
from pseudovideo.tokenizers import PatchKMeans, TokenizerConfig

# Images that k-means clusters: enough for its codebook, few enough for minutes.
_KMEANS_IMAGES = 4000
_BATCH = 250


def run_arm(
    settings: GenerateSettings,
    data: GenerationData,
    folder: Path,
    arm: Arm,
    stem: StemName,
    seed: int,
    extractor: FeatureExtractor,
    reference: FeatureMoments,
    *,
    recipe: str,
) -> dict[str, Any]:
    """Train, draw and measure all that an arm has.

    Args:
        settings: of the comparison.
        data: the images.
        folder: of the experiment.
        arm: which one.
        stem: of its tokenizer.
        seed: of its tokenizer and priors.
        extractor: of features.
        reference: moments of the training images' features.
        recipe: name of the recipe that the settings came from.

    Returns:
        The arm's results.
    """
    one = settings.one_tokenizer(arm, stem, seed)
    trained = train_tokenizer(
        one,
        data,
        tokenizer_folder(folder, arm.name, stem, seed),
        recipe=recipe,
        label=run_name(arm.name, stem, seed),
    )
    tokenizer = trained.tokenizer.to(distributed.resolve_device(settings.machine.device))
    found = _facts(arm, stem, seed, tokenizer.config) | {
        "parameters": sum(p.numel() for p in tokenizer.parameters())
        + tokenizer.config.codebook_size * tokenizer.config.code_dim,
        "steps": trained.steps,
        "tokenizer_seconds": trained.seconds,
        "reconstruction": evaluate_reconstruction(
            tokenizer,
            data.test[: settings.evaluation.num_images],
            video_config(one.videos, arm.frames),
            extractor,
            seed=derive_seed(seed, "test videos"),
            device=next(tokenizer.parameters()).device,
        ),
    }
    if settings.priors.prior and settings.has_priors(arm, stem):
        cache = make_tokens(tokens_folder(folder, arm.name, stem, seed), trained, data)
        held_out = _test_tokens(settings, data, trained)
        found["generation"] = {
            prior: _run_prior(
                settings, folder, arm, stem, seed, prior, trained, cache, held_out, recipe
            )
            | _measured(settings, folder, arm, stem, seed, prior, extractor, reference)
            for prior in settings.priors.prior
        }
    return found


def floor_result(
    settings: GenerateSettings,
    data: GenerationData,
    arm: Arm,
    stem: StemName,
    seed: int,
    extractor: FeatureExtractor,
) -> dict[str, Any]:
    """What k-means on raw patches makes of an arm's tokens.

    Args:
        settings: of the comparison.
        data: the images.
        arm: whose tokens it spends.
        stem: any; raw patches have none.
        seed: of the images that it clusters and of its start.
        extractor: of features.

    Returns:
        Results in the form of `run_arm`.
    """
    one = settings.one_tokenizer(arm, stem, seed)
    config = tokenizer_config(one, data)
    device = distributed.resolve_device(settings.machine.device)
    kmeans = PatchKMeans(config).to(device)
    generator = torch.Generator().manual_seed(derive_seed(seed, "k-means"))
    chosen = torch.randperm(len(data.train), generator=generator)[:_KMEANS_IMAGES]
    videos = video_config(one.videos, arm.frames)
    kmeans.fit(
        pseudo_videos(to_unit(data.train[chosen].to(device)), videos, seed=seed),
        generator=generator,
    )
    return _facts(arm, FLOOR, seed, config) | {
        "parameters": kmeans.codebook.numel(),
        "steps": None,
        "tokenizer_seconds": None,
        "reconstruction": evaluate_reconstruction(
            kmeans,
            data.test[: settings.evaluation.num_images],
            videos,
            extractor,
            seed=derive_seed(seed, "test videos"),
            device=device,
        ),
    }


def _facts(arm: Arm, stem: str, seed: int, config: TokenizerConfig) -> dict[str, Any]:
    return {
        "arm": arm.name,
        "stem": stem,
        "seed": seed,
        "frames": arm.frames,
        "patch": config.patch_size,
        "tokens": config.grid.num_tokens,
        "bits": config.grid.bits,
    }


def _run_prior(
    settings: GenerateSettings,
    folder: Path,
    arm: Arm,
    stem: StemName,
    seed: int,
    prior: PriorName,
    trained: TrainedTokenizer,
    cache: TokenCache,
    held_out: Tensor,
    recipe: str,
) -> dict[str, Any]:
    """Train a prior and draw from it; gives what its training took, and how well it predicts."""
    where = tokenizer_folder(folder, arm.name, stem, seed).relative_to(folder)
    learned = train_prior(
        settings.one_prior(str(where), prior, seed),
        cache,
        prior_folder(folder, prior, arm.name, stem, seed),
        recipe=recipe,
        label=prior_name(prior, arm.name, stem, seed),
    )
    model = learned.prior.to(held_out.device)
    file = samples_file(folder, prior, arm.name, stem, seed)
    if not file.exists():
        draw_samples(
            model,
            trained.tokenizer,
            settings.evaluation.num_samples,
            settings.sampling,
            seed=derive_seed(seed, f"{prior} samples"),
        ).save(file)
    return {
        "nats_per_token": _nats(model, held_out, seed=derive_seed(seed, "test masks")),
        "training_seconds": learned.seconds,
    }


def _measured(
    settings: GenerateSettings,
    folder: Path,
    arm: Arm,
    stem: StemName,
    seed: int,
    prior: PriorName,
    extractor: FeatureExtractor,
    reference: FeatureMoments,
) -> dict[str, Any]:
    samples = Samples.load(samples_file(folder, prior, arm.name, stem, seed))
    found = evaluate_generation(samples.images[:, None], reference, extractor)
    return {**found, "seconds": samples.seconds}


def _test_tokens(
    settings: GenerateSettings, data: GenerationData, trained: TrainedTokenizer
) -> Tensor:
    """Tokens of the test images."""
    one, tokenizer = trained.settings, trained.tokenizer
    device = next(tokenizer.parameters()).device
    videos = video_config(one.videos, one.frames)
    found: list[Tensor] = []
    images = data.test[: settings.evaluation.num_images]
    for index in torch.arange(len(images)).split(_BATCH):
        found.append(
            tokenizer.encode(
                pseudo_videos(
                    to_unit(images[index].to(device)),
                    videos,
                    seed=derive_seed(one.seed, "test videos"),
                    index=index.to(device),
                )
            )
        )
    return torch.cat(found)


def _nats(prior: Prior, tokens: Tensor, *, seed: int) -> float:
    """Mean of −log p on held-out tokens: of all, or of those that a masked prior's masks hide."""
    total = 0.0
    with fork_random(tokens.device), torch.no_grad():
        torch.manual_seed(seed)
        for part in tokens.split(_BATCH):
            total += len(part) * float(prior.loss(part))
    return total / len(tokens)
