"""`probseq language`: train decoders on a text and measure how well and how surely they predict."""

import email
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor, nn

from probseq.transformers import (
    CausalKernelAttention,
    CausalSoftmaxAttention,
    CausalTransformer,
    bits_per_token,
    evaluate_tokens,
)
from probseq_apps.data.names import reading
from probseq_apps.data.sets import load_texts
from probseq_apps.data.tokenizers import (
    TextEncoder,
    character_encoder,
    subword_encoder,
    token_windows,
)
from probseq_apps.engine import distributed
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.fit import estimate_seconds, fit
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiment import (
    Job,
    Results,
    RunFolder,
    Workflow,
    by_row,
    counted,
    rows_and_seeds,
    seconds_by_row,
)
from probseq_apps.options import Options
from probseq_apps.report.language import language_report
from probseq_apps.settings.language import DECODERS, TEXT_PREFIX, LanguageSettings
from sgpa import CausalFeatureAttention, CausalSparseGPAttention, ResidualSparseGPAttention


class Corpus(NamedTuple):
    """Windows of tokens, each one token longer than the context, also of other texts."""

    train: Int64[Tensor, "n t"]
    validation: Int64[Tensor, "v t"]
    tests: Mapping[str, Tensor]
    vocabulary: int


def load(settings: LanguageSettings, options: Options) -> Corpus:
    """Read the texts and split them into tokens."""
    distributed.join(distributed.resolve_device(settings.training.device))
    text = read_text(settings.data, options.data_dir)
    encode, vocabulary = tokenizer_of(settings.tokenizer, text[: int(0.8 * len(text))])
    tokens, size, length = encode(text), settings.test_size, settings.model.context + 1
    held_out = min(size, len(tokens) // 10)
    train, validation, test = tokens.split([len(tokens) - 2 * held_out, held_out, held_out])
    tests = {"test": token_windows(test, length)}
    for name in settings.ood:
        # In the middle: texts begin with titles and lists.
        text_tokens = encode(read_text(name, options.data_dir))
        start = max(0, (len(text_tokens) - size) // 2)
        tests[f"ood/{name}"] = token_windows(text_tokens[start : start + size], length)
    train = token_windows(train[: settings.train_size], length)
    return Corpus(train, token_windows(validation, length), tests, vocabulary)


def check(settings: LanguageSettings, data: Corpus) -> None:
    """Raise if the settings don't fit the data."""
    for name in settings.method:
        build_decoder(settings, name, data, 0)


def describe(settings: LanguageSettings, data: Corpus) -> str:
    """Return the size of the text, and what is compared."""
    compared, tokens = counted(settings.method, settings.seeds), data.train.numel()
    return f"{settings.data}: {tokens:,} tokens of {data.vocabulary} kinds; {compared}"


def seconds(settings: LanguageSettings, data: Corpus, jobs: Sequence[Job]) -> float:
    """Return about how long the trainings of jobs take."""
    config = TrainConfig(**settings.training.to_dict(), seed=0)

    def of_job(job: Job) -> float:
        model = build_decoder(settings, job.row, data, 0)
        learned = _loss_and_score(settings, data)
        return estimate_seconds(model, (data.train,), config, **learned)

    return seconds_by_row(jobs, of_job)


def _loss_and_score(settings: LanguageSettings, data: Corpus) -> dict[str, Any]:
    """Return the arguments of `fit` that say what is learned and validated."""
    return {
        "loss": partial(decoder_loss, settings),
        "score": lambda network, batches: {"score": -mean_bits(network, batches)},
        "held_out": (data.validation,),
    }


def train_decoder(
    settings: LanguageSettings, data: Corpus, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Train a decoder, from where it stopped, and measure it."""
    values = settings.to_dict()
    identity = {name: values[name] for name in ("data", "tokenizer", "model", "process")}
    model = build_decoder(settings, job.row, data, job.seed)
    end = fit(
        model,
        (data.train,),
        TrainConfig(**settings.training.to_dict(), seed=job.seed),
        _folder(job, at),
        **_loss_and_score(settings, data),
        label=job.row,
        metadata={"method": job.row, "train_size": settings.train_size, **identity},
    )
    seconds = round(end.seconds, 3)

    def measured() -> dict[str, Any]:
        seeds = {name: derive_seed(job.seed, f"predict {name}") for name in data.tests}
        return {n: measure(settings, model, data.tests[n], seed) for n, seed in seeds.items()}

    return {"seconds": seconds, **(distributed.main_alone(measured) or {})}


def _folder(job: Job, at: RunFolder) -> Path:
    return at.path / job.row / f"seed-{job.seed}"


def report(settings: LanguageSettings, data: Corpus, results: Results, at: RunFolder) -> str:
    """Write the report."""
    facts = {"name": settings.data, "notes": list[str](), "train": data.train.numel()}
    facts |= {"kinds": data.vocabulary}
    common: dict[str, Any] = {"settings": settings.to_dict(), "data": facts, "recipe": at.recipe}
    logs: dict[str, list[Path]] = {}
    for job in results:
        logs.setdefault(job.row, []).append(_folder(job, at))
    return language_report(by_row(results), count_pairs(data), logs, **common).write(at.path)


def count_pairs(data: Corpus) -> dict[str, dict[str, float]]:
    """Return bits and accuracy of each text by how often tokens follow another in training.

    Of the n tokens after a, of k kinds, n_b are b: p(b | a) = (n_b + k p(b)) / (n + k), by Witten
    and Bell, where p(b) is the share of b in training, with one more of each kind.
    """
    V = data.vocabulary
    shares = torch.bincount(data.train.flatten(), minlength=V).double() + 1
    shares /= shares.sum()
    pairs, counts = (data.train[:, :-1] * V + data.train[:, 1:]).unique(return_counts=True)
    n = torch.zeros(V, dtype=torch.float64).index_add_(0, pairs // V, counts.double())
    k = torch.bincount(pairs // V, minlength=V).double()
    # The most frequent follower; where nothing followed, the most frequent token.
    guess, order = shares.argmax().repeat(V), counts.argsort(stable=True)
    for pair in pairs[order].tolist():
        guess[pair // V] = pair % V
    metrics: dict[str, dict[str, float]] = {}
    for name, tokens in data.tests.items():
        before, after = tokens[:, :-1].flatten(), tokens[:, 1:].flatten()
        pair = before * V + after
        place = torch.searchsorted(pairs, pair).clamp(max=len(pairs) - 1)
        n_b = torch.where(pairs[place] == pair, counts[place], 0).double()
        weight = k[before].clamp(min=1.0)
        p = (n_b + weight * shares[after]) / (n[before] + weight)
        hits = (guess[before] == after).double()
        metrics[name] = {"bits": float(-p.log2().mean()), "accuracy": float(hits.mean())}
    return metrics


WORKFLOW = Workflow(
    kind="language",
    command="language",
    folders=tuple(f"{name}/seed-*" for name in DECODERS),
    jobs=rows_and_seeds,
    load=load,
    check=check,
    describe=describe,
    seconds=seconds,
    run=train_decoder,
    report=report,
)


def build_decoder(
    settings: LanguageSettings, name: str, data: Corpus, seed: int
) -> CausalTransformer:
    """Return a new decoder with a kind of attention."""
    model, process = settings.model, settings.process
    sizes = (model.dim, model.num_heads)
    inducing = (*sizes, process.num_inducing)
    options: dict[str, Any] = {"num_data": len(data.train), "dropout": model.dropout}

    def attention(index: int) -> nn.Module:
        match name:
            case "softmax":
                return CausalSoftmaxAttention(*sizes, dropout=model.dropout)
            case "kernel":
                return CausalKernelAttention(*sizes, dropout=model.dropout)
            case "sgpa":
                covariance = process.covariance
                return CausalSparseGPAttention(*inducing, covariance=covariance, **options)
            case "sgpa-features":
                return CausalFeatureAttention(*inducing, process.num_features, **options)
            case _:
                return ResidualSparseGPAttention(*inducing, causal=True, **options)

    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "weights"))
        return CausalTransformer(
            model, vocab_size=data.vocabulary, max_length=model.context, attention=attention
        )


def decoder_loss(
    settings: LanguageSettings, model: nn.Module, batch: Batch, step: Step
) -> LossParts:
    """Return nats a token, with the weighted KL divergence: over all tokens of a sequence."""
    (tokens,) = batch
    output = model(tokens[:, :-1], generator=step.generator)
    nll = F.cross_entropy(output.logits.flatten(0, 1), tokens[:, 1:].flatten())
    kl = output.penalty / settings.model.context
    # The residual form's KL divergence is over the number of sequences already.
    residual = any(isinstance(m, ResidualSparseGPAttention) for m in model.modules())
    weight = 1.0 if residual else settings.process.kl_scale * step.progress
    return LossParts(nll + weight * kl, {"nll": nll, "kl": kl})


@torch.no_grad()
def mean_bits(model: nn.Module, batches: Iterable[Batch]) -> float:
    """Return bits a token of held-out windows."""
    bits = [bits_per_token(model(tokens[:, :-1]).logits, tokens[:, 1:]) for (tokens,) in batches]
    return float(torch.cat(bits).mean())


def measure(
    settings: LanguageSettings, model: CausalTransformer, tokens: Tensor, seed: int
) -> dict[str, Any]:
    """Return bits, accuracy and calibration of a text's tokens, and the KL divergence."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    samples = settings.process.num_samples
    metrics = evaluate_tokens(model, tokens, num_samples=samples, generator=generator)
    bins = {name: value.tolist() for name, value in metrics.bins._asdict().items()}
    return {**metrics._asdict(), "bins": bins}


def read_text(name: str, data_dir: Path | None) -> str:
    """Return a text by its name."""
    if name.startswith(TEXT_PREFIX):
        path = Path(name.removeprefix(TEXT_PREFIX)).expanduser()
        with reading(path, "a text"):
            return path.read_text(encoding="utf-8")
    if name == "python-docs":
        from pydoc_data.topics import topics

        return "\n".join(topics.values())
    if name == "python-code":
        folder = Path(email.__path__[0])
        files = [folder / f"{module.name}.py" for module in pkgutil.iter_modules([str(folder)])]
        return "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    return "\n".join(load_texts(name, data_dir=data_dir))


def tokenizer_of(name: str, text: str) -> TextEncoder:
    """Return the encoder from texts to tokens, and the size of its vocabulary."""
    if name == "characters":
        return character_encoder(text)
    with reading(name, "a tokenizer"):
        return subword_encoder(Path(name))
