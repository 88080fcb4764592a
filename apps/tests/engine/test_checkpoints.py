import json
import shutil

import pytest
import torch
from safetensors.torch import load_model

from probseq_apps.engine.checkpoints import (
    Checkpoint,
    DamagedCheckpointWarning,
    clean_leftovers,
    copy_weights,
    load_latest_checkpoint,
    load_weights,
    save_checkpoint,
)
from probseq_apps.engine.files import FormatError, write_json


def checkpoint(step, *, best=None):
    weights = {"w": torch.full((3,), float(step))}
    return Checkpoint(step, weights, best, {"numbers": [1, 2.5], "rng": torch.get_rng_state()})


def steps(root):
    return sorted(path.name for path in root.iterdir())


def test_what_is_saved_comes_back(tmp_path):
    saved = checkpoint(7, best={"w": torch.zeros(3)})._replace(ema={"w": torch.ones(3)})
    folder = save_checkpoint(tmp_path, saved, {"a": 1})
    loaded = load_latest_checkpoint(tmp_path)
    assert folder.name == "step-000007"
    assert loaded.step == 7
    assert torch.equal(loaded.weights["w"], saved.weights["w"])
    assert torch.equal(loaded.best["w"], torch.zeros(3))
    assert torch.equal(loaded.ema["w"], torch.ones(3))
    assert torch.equal(loaded.state["rng"], saved.state["rng"])
    assert json.loads((folder / "config.json").read_text()) == {"a": 1}


def test_the_manifest_lists_every_other_file_with_size_and_versions(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(1), {})
    manifest = json.loads((folder / "manifest.json").read_text())
    others = {p.name: p.stat().st_size for p in folder.iterdir() if p.name != "manifest.json"}
    assert {name: entry["size"] for name, entry in manifest["files"].items()} == others
    assert manifest["versions"]["torch"] == torch.__version__
    assert set(manifest["versions"]) == {"torch", "probseq-apps"}


def test_the_last_two_checkpoints_stay_in_order_of_number_not_of_name(tmp_path):
    for step in (999_998, 999_999, 1_000_000):
        save_checkpoint(tmp_path, checkpoint(step), {})
    assert steps(tmp_path) == ["step-1000000", "step-999999"]
    assert load_latest_checkpoint(tmp_path).step == 1_000_000


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def alter(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "train_state.pt", "config.json"])
@pytest.mark.parametrize("damage", [truncate, alter, lambda file: file.unlink()])
def test_a_damaged_file_makes_the_checkpoint_named_and_skipped(tmp_path, name, damage):
    save_checkpoint(tmp_path, checkpoint(1), {"key": "value"})
    folder = save_checkpoint(tmp_path, checkpoint(2), {"key": "value"})
    damage(folder / name)
    with pytest.warns(DamagedCheckpointWarning, match=rf"step-000002 is damaged.*{name}"):
        assert load_latest_checkpoint(tmp_path).step == 1


@pytest.mark.parametrize(
    "content", [None, "", "[]", {}, {"files": 3}, {"files": {"a": 3}}, {"files": {"../a": {}}}]
)
def test_a_missing_or_senseless_manifest_counts_as_damage(tmp_path, content):
    folder = save_checkpoint(tmp_path, checkpoint(2), {})
    if content is None:
        (folder / "manifest.json").unlink()
    elif isinstance(content, str):
        (folder / "manifest.json").write_text(content)
    else:
        write_json(folder / "manifest.json", {"step": 2, **content})
    with pytest.warns(DamagedCheckpointWarning, match=r"manifest\.json"):
        assert load_latest_checkpoint(tmp_path) is None


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(2), {})
    truncate(folder / "model.safetensors")
    save_checkpoint(tmp_path, checkpoint(2), {})
    assert load_latest_checkpoint(tmp_path).step == 2
    assert steps(tmp_path) == ["step-000002"]


def test_damaged_later_checkpoints_do_not_push_out_good_ones(tmp_path):
    for step in (1, 8, 9):
        save_checkpoint(tmp_path, checkpoint(step), {}, keep=3)
    truncate(tmp_path / "step-000008" / "train_state.pt")
    truncate(tmp_path / "step-000009" / "train_state.pt")
    save_checkpoint(tmp_path, checkpoint(2), {})
    assert steps(tmp_path) == ["step-000001", "step-000002", "step-000008", "step-000009"]


def test_leftovers_are_ignored_and_cleaned_and_nothing_else_is_touched(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1), {})
    (tmp_path / ".tmp-step-000002").mkdir()
    (tmp_path / ".tmp-step-000002" / "model.safetensors").write_text("half")
    assert load_latest_checkpoint(tmp_path).step == 1
    clean_leftovers(tmp_path)
    assert steps(tmp_path) == ["step-000001"]


def test_a_failed_write_leaves_the_old_checkpoint_and_no_leftover(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1), {})
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, checkpoint(2), {"not JSON": object()})
    assert steps(tmp_path) == ["step-000001"]


def test_a_state_that_would_run_code_when_read_is_damage(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1), {})
    save_checkpoint(tmp_path, checkpoint(2)._replace(state={"function": print}), {})
    with pytest.warns(DamagedCheckpointWarning, match=r"train_state\.pt cannot be read: Weights"):
        assert load_latest_checkpoint(tmp_path).step == 1


def test_a_checkpoint_under_another_step_s_name_is_damage(tmp_path):
    save_checkpoint(tmp_path, checkpoint(18), {}).rename(tmp_path / "step-000999")
    with pytest.warns(DamagedCheckpointWarning, match=r"manifest\.json is of step 18"):
        assert load_latest_checkpoint(tmp_path) is None


def test_a_file_that_the_manifest_does_not_list_is_not_loaded(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(1), {})
    shutil.copy(folder / "model.safetensors", folder / "best.safetensors")
    assert load_latest_checkpoint(tmp_path).best is None


def test_a_checkpoint_of_another_version_is_refused_and_not_skipped(tmp_path):
    file = save_checkpoint(tmp_path, checkpoint(1), {}) / "manifest.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(FormatError, match=r"manifest\.json has format 99"):
        load_latest_checkpoint(tmp_path)


def test_an_empty_or_absent_folder_holds_no_checkpoint(tmp_path):
    assert load_latest_checkpoint(tmp_path / "nowhere") is None
    clean_leftovers(tmp_path / "nowhere")


def test_shared_tensors_are_stored_once_and_stay_shared(tmp_path, digits_run):
    model, other = digits_run.SharedNormNet(0.0), digits_run.SharedNormNet(0.0)
    with torch.no_grad():
        model.layers[1].weight.uniform_()
    weights = copy_weights(model)
    assert "layers.1.weight" in weights
    assert "layers.4.weight" not in weights
    load_weights(other, weights)
    assert torch.equal(other.layers[4].weight, model.layers[1].weight)
    assert other.layers[4].weight is other.layers[1].weight


def test_the_weights_file_is_one_that_safetensors_itself_loads_strictly(tmp_path, digits_run):
    model, other = digits_run.SharedNormNet(0.0), digits_run.SharedNormNet(0.0)
    state = Checkpoint(1, copy_weights(model), None, {})
    folder = save_checkpoint(tmp_path, state, {})
    load_model(other, folder / "model.safetensors", strict=True)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_weights_of_another_model_are_refused_by_name(digits_run):
    model = digits_run.SharedNormNet(0.0)
    weights = copy_weights(model)
    lacking = {k: v for k, v in weights.items() if k != "head.bias"}
    with pytest.raises(ValueError, match=r"missing \['head.bias'\], unknown \[\]"):
        load_weights(model, lacking)
    with pytest.raises(ValueError, match=r"missing \[\], unknown \['extra'\]"):
        load_weights(model, weights | {"extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"head.bias must have shape \(10,\), got \(1,\)"):
        load_weights(model, weights | {"head.bias": torch.zeros(1)})


def test_copied_weights_do_not_change_with_the_model(digits_run):
    model = digits_run.SharedNormNet(0.0)
    weights = copy_weights(model)
    with torch.no_grad():
        model.head.bias.fill_(5.0)
    assert not (weights["head.bias"] == 5.0).any()
