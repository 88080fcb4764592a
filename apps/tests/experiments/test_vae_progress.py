import pytest
import torch

from damage import flipped_bits
from ohsvgp import LegS, OnlineSVGPVAE
from ohsvgp.tasks import Task
from ohsvgp.vae import MLPDecoder, MLPEncoder
from probseq.files import DamagedFileError
from probseq.kernels import RBF
from probseq_apps.experiments.online_vae import evaluate_vae, load_progress, save_progress


def make():
    torch.manual_seed(0)
    return OnlineSVGPVAE(MLPEncoder(2, 2), MLPDecoder(2, 2), RBF(1), LegS(4), num_latents=2)


def tasks():
    t = torch.linspace(0.0, 2.0, 20, dtype=torch.float64)
    y = torch.stack([t.sin(), t.cos()], -1)
    places = [(range(0, 8), range(8, 10)), (range(10, 15), range(15, 20))]
    return [Task(t[[*a]], y[[*a]], t[[*b]], y[[*b]]) for a, b in places]


def test_metrics_over_all_tasks_pool_those_of_each():
    model = make()
    for task in tasks():
        model.fit_task(task.x, task.y, epochs=1)
    each, over = evaluate_vae(model, tasks(), 3, torch.Generator())
    pooled = sum(n * found["rmse"] ** 2 for n, found in zip((2, 5), each, strict=True)) / 7
    assert over["rmse"] == pytest.approx(pooled**0.5)
    nlpd = sum(n * found["nlpd"] for n, found in zip((2, 5), each, strict=True)) / 7
    assert over["nlpd"] == pytest.approx(nlpd)


def test_progress_comes_back_and_a_damaged_file_is_named(tmp_path):
    model, file = make(), tmp_path / "model.safetensors"
    assert load_progress(file, model) == ([], {})
    model.fit_task(tasks()[0].x, tasks()[0].y, epochs=1)
    extra = {"last": torch.arange(3.0)}
    save_progress(file, model, [{"lost": 0.5}], extra)
    other = make()
    records, found = load_progress(file, other)
    assert records == [{"lost": 0.5}]
    assert torch.equal(found["last"], extra["last"])
    same = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in same if isinstance(a, torch.Tensor))
    for _ in flipped_bits(file, 200):
        with pytest.raises(DamagedFileError, match=r"model\.safetensors is damaged"):
            load_progress(file, other)
    assert load_progress(file, other)[0] == records
