"""`probseq language`: texts, windows, what is measured, and that a killed run goes on."""

import itertools
import json
import math

import pytest
import torch

import probseq_apps.cli as cli
from probseq.transformers import CausalTransformer, bits_per_token
from probseq_apps.experiments.language import (
    Corpus,
    build_decoder,
    count_pairs,
    load,
    measure,
    read_text,
)
from probseq_apps.options import Options
from probseq_apps.settings.language import DECODERS, LanguageSettings

TINY = ["--dim", "8", "--num-heads", "2", "--hidden-dim", "8", "--depth", "1", "--context", "8"]
TINY += ["--train-size", "600", "--test-size", "200", "--epochs", "1", "--num-inducing", "3"]
TINY += ["--num-samples", "2", "--seeds", "0", "1", "--threads", "1", "--workers", "1", "--quiet"]


def run(tmp_path, *words):
    return cli.main(["language", *TINY, "--run-dir", str(tmp_path / "run"), *words])


def test_texts_that_every_python_has_are_long_and_differ():
    docs, code = read_text("python-docs", None), read_text("python-code", None)
    assert min(len(docs), len(code)) > 100_000
    assert code.count("self.") > 10 * docs.count("self.")


@pytest.mark.slow
def test_all_decoders_are_measured_as_by_hand(load_run, tmp_path):
    (tmp_path / "a.txt").write_text("how much wood would a woodchuck chuck? " * 60)
    (tmp_path / "b.txt").write_text("she sells sea shells by the sea shore. " * 20)
    words = ["--data", f"text:{tmp_path}/a.txt", "--ood", f"text:{tmp_path}/b.txt"]
    words += ["--method", *DECODERS, "--num-features", "8"]
    assert run(tmp_path, *words) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert list(report["methods"]) == list(DECODERS)
    found = report["methods"]["softmax"]["test"]
    settings = LanguageSettings.from_dict(report["settings"])
    data = load(settings, Options())
    model = build_decoder(settings, "softmax", data, 0)
    load_run(model, tmp_path / "run/softmax/seed-0")
    assert isinstance(model, CausalTransformer)
    tokens = data.tests["test"]
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    assert found["bits"]["values"][0] == pytest.approx(
        float(bits_per_token(logits, tokens[:, 1:]).mean()), rel=1e-5
    )
    hits = float((logits.argmax(-1) == tokens[:, 1:]).double().mean())
    assert found["accuracy"]["values"][0] == pytest.approx(hits)
    for own in report["methods"].values():
        assert 0 < own["test"]["bits"]["mean"] < math.log2(data.vocabulary) + 1
    assert report["methods"]["softmax"]["test"]["kl"]["mean"] == 0.0
    assert report["methods"]["sgpa"]["test"]["kl"]["mean"] > 0.0
    assert len(list((tmp_path / "run/plots").iterdir())) == 3
    # What is finished is not done again.
    before = (tmp_path / "run/softmax/seed-0/metrics.jsonl").stat().st_mtime_ns
    assert run(tmp_path, "--resume", *words) == 0
    assert (tmp_path / "run/softmax/seed-0/metrics.jsonl").stat().st_mtime_ns == before


def test_counts_of_pairs_are_those_of_witten_and_bell():
    train = torch.tensor([[0, 1, 0, 1, 2], [1, 2, 0, 2, 0]])
    data = Corpus(train, train, {"test": torch.tensor([[0, 1, 1, 2, 2], [3, 0, 3, 1, 0]])}, 4)
    followers = {token: [] for token in range(4)}
    for row in train.tolist():
        for before, after in itertools.pairwise(row):
            followers[before].append(after)
    seen = train.flatten().tolist()

    def probability(before, after):
        share = (seen.count(after) + 1) / (len(seen) + 4)
        kinds = len(set(followers[before]))
        if not kinds:
            return share
        counted = followers[before].count(after)
        return (counted + kinds * share) / (len(followers[before]) + kinds)

    assert sum(probability(1, after) for after in range(4)) == pytest.approx(1.0)
    pairs = [pair for row in data.tests["test"].tolist() for pair in itertools.pairwise(row)]
    bits = [-math.log2(probability(*pair)) for pair in pairs]
    found = count_pairs(data)["test"]
    assert found["bits"] == pytest.approx(sum(bits) / len(bits))
    # After 0 comes 1 most often, after 1 comes 2, after 2 only 0; nothing follows 3.
    assert found["accuracy"] == pytest.approx(3 / 8)


def test_bits_of_what_a_sure_model_gets_wrong_are_finite():
    settings, tokens = LanguageSettings(), torch.tensor([[0, 0, 1, 1, 2]])
    model = build_decoder(settings, "softmax", Corpus(tokens, tokens, {}, 3), 0).eval()
    model.to_logits.weight.data.mul_(1e4)
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    nats = -logits.double().log_softmax(-1).gather(-1, tokens[:, 1:, None])
    assert nats.max() > 200  # less than any float32 is left of the probability
    found = measure(settings, model, tokens, 0)
    assert found["bits"] == pytest.approx(float(nats.mean()) / math.log(2), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "rnn"], "unknown method 'rnn'"),
        (["--data", "latin"], "unknown text 'latin'"),
        (["--ood", "text:"], "needs a path after the colon"),
        (["--data", "text:none.txt"], "none.txt cannot be read as a text"),
        (["--data", "text:{short}"], "must have at least 9 tokens for each part"),
        (["--data", "text:{empty}"], "must have at least 9 tokens for each part"),
        (["--ood", "text:{empty}"], "must have at least 9 tokens for each part"),
        (["--tokenizer", "bytes"], "tokenizer must be characters or a tokenizer.json"),
        (["--num-heads", "3"], "num_heads"),
        (["--data", "imdb"], "--data-dir"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_written(
    tmp_path, capsys, words, message
):
    names = {name: tmp_path / f"{name}.txt" for name in ("short", "empty")}
    names["short"].write_text("too short")
    names["empty"].write_text("")
    try:
        status = run(tmp_path, *(word.format(**names) for word in words))
    except SystemExit as error:
        status = error.code
    assert status in (1, 2)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
