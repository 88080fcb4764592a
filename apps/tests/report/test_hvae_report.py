import json

import torch
from PIL import Image

from probseq_apps.data.images import GenerationData
from probseq_apps.experiments.compare_models import HvaeModels
from probseq_apps.experiments.generate_files import (
    MODEL_PARTS,
    model_folder,
    model_samples_file,
    process_file,
)
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.experiments.hvae_settings import HvaeSettings
from probseq_apps.experiments.process import Process
from probseq_apps.folder import RunFolder
from probseq_apps.report.generate import hvae_findings

REAL_IMAGES = {"fd": 1.0, "is": 9.5, "is_splits": 1, "num_samples": 40}


def random_bytes(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def test_everything_is_written_and_shown(tmp_path, hvae_result):
    torch.manual_seed(0)
    results = [hvae_result(arm, s, 9.0 + s) for s in (0, 1) for arm in ("heat", "learned")]
    for part in MODEL_PARTS:
        (tmp_path / part).mkdir()
    for result in results:
        key = (result["arm"], result["seed"])
        images = random_bytes(50, 1, 8, 8)
        Samples(images, images[:20, None], 1.0).save(model_samples_file(tmp_path, *key))
        levels = Process(random_bytes(16, 19, 1, 1, 8, 8), torch.arange(19))
        levels.save(process_file(tmp_path, *key))
        run = model_folder(tmp_path, *key)
        run.mkdir()
        parts = {"steps": 2.0, "prior": 0.5, "mse": 0.1}
        row = {"step": 100, "loss": 2.5, "parts": parts}
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    settings = HvaeSettings(seeds=(0, 1))
    data = GenerationData("digits", *(random_bytes(n, 1, 8, 8) for n in (60, 10, 40)))
    at = RunFolder(tmp_path, "digits-hvae")
    shown = HvaeModels(settings).write(results, REAL_IMAGES, data, at)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["experiment"], report["recipe"]) == ("generate-hvae", "digits-hvae")
    assert report["results"] == results
    assert report["settings"] == json.loads(json.dumps(settings.to_dict()))
    text = (tmp_path / "report.md").read_text()
    assert all("9.500±0.500" in told for told in (shown, text))
    assert "IS(classifier): heat" in text
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    films = {"process-heat.gif", "process-learned.gif"}
    assert drawn == {"summary.png", "samples.png", "losses.png", *films}
    for name in films:
        with Image.open(tmp_path / "plots" / name) as film:
            assert film.n_frames == 19


def test_the_encoders_are_compared_by_score_and_distance(hvae_result):
    results = [
        hvae_result(arm, seed, mean + 0.1 * (seed - 1))
        for seed in range(3)
        for arm, mean in (("heat", 9.3), ("learned", 7.3))
    ]
    assert hvae_findings(results) == [
        "IS(classifier): heat 9.300±0.058 is clearly higher than learned 7.300±0.058 (better).",
        "FD(classifier): heat 20.00±0.00 is not clearly different from learned 20.00±0.00 (equal).",
    ]
    assert hvae_findings([result for result in results if result["arm"] == "heat"]) == []
