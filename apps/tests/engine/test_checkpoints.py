import re
import shutil

import pytest
import torch
from digits_run import SharedNormNet

from damage import flipped_bits
from probseq.files import Format, OtherFormatError, write_tensors
from probseq_apps.engine.checkpoints import (
    Checkpoint,
    DamagedCheckpointWarning,
    copy_weights,
    load_latest_checkpoint,
    load_weights,
    save_checkpoint,
)


def save(root, step, **changes):
    weights = {"w": torch.full((3,), float(step))}
    state = {"numbers": [1, 2.5], "rng": torch.get_rng_state()}
    return save_checkpoint(root, Checkpoint(step, weights, None, state)._replace(**changes))


def steps(root):
    return sorted(path.stem for path in root.iterdir())


def test_what_is_saved_comes_back(tmp_path):
    best, ema = {"w": torch.zeros(3)}, {"w": torch.ones(3)}
    file = save(tmp_path, 7, best=best, ema=ema)
    loaded = load_latest_checkpoint(tmp_path)
    assert file.name == "step-000007.safetensors"
    assert loaded.step == 7
    for found, wanted in ((loaded.weights, torch.full((3,), 7.0)), (loaded.best, best["w"])):
        assert torch.equal(found["w"], wanted)
    assert torch.equal(loaded.ema["w"], ema["w"])
    assert torch.equal(loaded.state["rng"], torch.get_rng_state())
    assert loaded.state["numbers"] == [1, 2.5]


def test_the_last_two_checkpoints_stay_in_order_of_number_not_of_name(tmp_path):
    for step in (999_998, 999_999, 1_000_000):
        save(tmp_path, step)
    assert steps(tmp_path) == ["step-1000000", "step-999999"]
    assert load_latest_checkpoint(tmp_path).step == 1_000_000


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def test_any_flipped_bit_makes_the_checkpoint_named_and_skipped(tmp_path):
    save(tmp_path, 1)
    file = save(tmp_path, 2)
    for _ in flipped_bits(file, 160):
        with pytest.warns(DamagedCheckpointWarning, match=re.escape(f"{file} is damaged")):
            assert load_latest_checkpoint(tmp_path).step == 1
    assert load_latest_checkpoint(tmp_path).step == 2
    save(tmp_path, 1).rename(file)
    with pytest.warns(DamagedCheckpointWarning, match=re.escape(f"{file} is of step 1")):
        assert load_latest_checkpoint(tmp_path) is None


def test_damaged_checkpoints_are_replaced_and_do_not_push_out_good_ones(tmp_path):
    for step in (8, 9):
        truncate(save(tmp_path, step))
    save(tmp_path, 1)
    assert steps(tmp_path) == ["step-000001", "step-000008", "step-000009"]
    save(tmp_path, 8)
    assert steps(tmp_path) == ["step-000001", "step-000008", "step-000009"]
    with pytest.warns(DamagedCheckpointWarning, match="step-000009"):
        assert load_latest_checkpoint(tmp_path).step == 8


def test_what_is_aside_is_ignored(tmp_path):
    file = save(tmp_path, 1)
    shutil.copy(file, tmp_path / ".tmp-ffffffff-1-0-step-000002.safetensors")
    assert load_latest_checkpoint(tmp_path).step == 1
    assert load_latest_checkpoint(tmp_path / "nowhere") is None


def test_a_state_that_would_run_code_when_read_is_damage(tmp_path):
    save(tmp_path, 1)
    file = save(tmp_path, 2, state={"function": print})
    with pytest.warns(DamagedCheckpointWarning, match=f"the state in {file} cannot be read: Wei"):
        assert load_latest_checkpoint(tmp_path).step == 1


def test_a_checkpoint_of_another_version_is_refused_and_not_skipped(tmp_path):
    write_tensors(tmp_path / "step-000001.safetensors", Format("checkpoint", 2), {}, {})
    with pytest.raises(OtherFormatError, match=r"000001\.safetensors is a checkpoint of format 2"):
        load_latest_checkpoint(tmp_path)


def test_shared_tensors_are_stored_once_and_stay_shared(tmp_path):
    model, other, third = (SharedNormNet(0.0) for _ in range(3))
    with torch.no_grad():
        model.layers[1].weight.uniform_()
    weights = copy_weights(model)
    assert "layers.1.weight" in weights
    assert "layers.4.weight" not in weights
    load_weights(other, weights)
    assert torch.equal(other.layers[4].weight, model.layers[1].weight)
    assert other.layers[4].weight is other.layers[1].weight
    save(tmp_path, 1, weights=weights)
    load_weights(third, load_latest_checkpoint(tmp_path).weights)
    for ours, theirs in zip(model.parameters(), third.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_weights_of_another_model_are_refused_by_name_and_copies_are_independent():
    model = SharedNormNet(0.0)
    weights = copy_weights(model)
    for changes, said in (
        ({"head.bias": None}, r"head.bias must have shape \(10,\), got none"),
        ({"extra": torch.zeros(1)}, r"extra must have shape .*no such weights.*, got \(1,\)"),
        ({"head.bias": torch.zeros(1)}, r"head.bias must have shape \(10,\), got \(1,\)"),
    ):
        given = {k: v for k, v in (weights | changes).items() if v is not None}
        with pytest.raises(ValueError, match=f"weights for {said}"):
            load_weights(model, given)
    with torch.no_grad():
        model.head.bias.fill_(5.0)
    assert not (weights["head.bias"] == 5.0).any()
