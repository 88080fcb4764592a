"""Models as folders: what comes back is what was stored, and nothing else is taken."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pseudovideo.pretrained import CONFIG, WEIGHTS, Pretrained, fingerprint, saved_class


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """Settings of every kind that can be stored."""

    width: int = 3
    scale: float = 0.1
    shape: tuple[Any, ...] = (1, (2, 3), "a")
    name: str | None = None
    on: bool = True

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")


class Toy(Pretrained):
    """A linear map, tied weights, and buffers of several types."""

    config_class: ClassVar[type[Any]] = ToyConfig

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        self.first = nn.Linear(config.width, config.width)
        self.tied = nn.Linear(config.width, config.width, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("counts", torch.arange(4))
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("short", torch.randn(2, 3, dtype=torch.bfloat16))
        self.register_buffer("turned", torch.randn(3, 4).T)


class OtherToy(Toy):
    """The same weights and settings under another name."""


def toy(**settings: Any) -> Toy:
    torch.manual_seed(0)
    return Toy(ToyConfig(**settings))


def test_settings_and_every_tensor_come_back_bit_for_bit(tmp_path: Path) -> None:
    model = toy(width=4, scale=1 / 3, name="x", on=False)
    model.flag.fill_(True)
    model.save_pretrained(tmp_path / "a" / "b")
    back = Toy.from_pretrained(str(tmp_path / "a" / "b"))
    assert back.config == model.config
    assert isinstance(back.config.shape[1], tuple)
    assert not back.training
    for (name, mine), theirs in zip(
        model.state_dict().items(), back.state_dict().values(), strict=True
    ):
        assert mine.dtype == theirs.dtype, name
        assert torch.equal(mine, theirs), name
    assert back.tied.weight is back.first.weight
    assert sorted(os.listdir(tmp_path / "a" / "b")) == [CONFIG, WEIGHTS]


def test_a_second_model_takes_the_place_of_the_first(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    toy(width=5).save_pretrained(tmp_path)
    assert Toy.from_pretrained(tmp_path).config.width == 5


def test_a_crash_between_the_two_files_gives_no_model_of_mixed_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(scale=0.1).save_pretrained(tmp_path)
    replace = os.replace

    def crash(source: Path, target: Path) -> None:
        if Path(target).name == CONFIG:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        toy(scale=0.2).save_pretrained(tmp_path)
    monkeypatch.undo()
    # Both settings fit these weights: only what the weights carry tells them apart.
    with pytest.raises(ValueError, match="belongs to other settings"):
        Toy.from_pretrained(tmp_path)
    toy(scale=0.2).save_pretrained(tmp_path)
    assert Toy.from_pretrained(tmp_path).config.scale == 0.2


def test_a_crash_before_the_first_file_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(scale=0.1).save_pretrained(tmp_path)

    def crash(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        toy(scale=0.2).save_pretrained(tmp_path)
    assert Toy.from_pretrained(tmp_path).config.scale == 0.1


@pytest.mark.parametrize(
    "value", [[1, 2], Path("a"), float("nan"), {1: 2}, ToyConfig(), ((1, [2]),)]
)
def test_a_setting_that_json_would_change_is_refused_when_saved(
    value: object, tmp_path: Path
) -> None:
    model = toy()
    object.__setattr__(model.config, "shape", value)
    with pytest.raises(ValueError, match=r"ToyConfig\.shape must be a number, string"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with pytest.raises(ValueError, match="folder must be a directory"):
        toy().save_pretrained(tmp_path / "model")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no file {name}"):
        Toy.from_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"has no file {name}"):
        saved_class(tmp_path)


def test_a_model_of_another_class_is_refused(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    assert saved_class(tmp_path) == "Toy"
    with pytest.raises(ValueError, match="holds a Toy, not a OtherToy"):
        OtherToy.from_pretrained(tmp_path)


def edit(folder: Path, **changes: object) -> None:
    values = json.loads((folder / CONFIG).read_text())
    values["config"].update(changes)
    (folder / CONFIG).write_text(json.dumps(values))


def test_settings_of_another_version_are_refused(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    edit(tmp_path, heads=3)
    with pytest.raises(ValueError, match="was written by another version"):
        Toy.from_pretrained(tmp_path)


def test_settings_that_were_changed_by_hand_are_refused(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    edit(tmp_path, scale=0.3)
    with pytest.raises(ValueError, match="belongs to other settings"):
        Toy.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value in line 1"),
        ("{", "Expecting property name enclosed in double quotes in line 1"),
        ("[]", "it must be text that names class and config"),
        ('"Toy"', "it must be text that names class and config"),
        ('{"class": "Toy"}', "it must be text that names class and config"),
        ('{"config": 3}', "it must be text that names class and config"),
    ],
)
def test_a_damaged_settings_file_is_named_in_plain_words(
    text: str, said: str, tmp_path: Path
) -> None:
    toy().save_pretrained(tmp_path)
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(ValueError, match=rf"config\.json is damaged: {said}$"):
        Toy.from_pretrained(tmp_path)


def test_truncated_weights_are_named(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    path = tmp_path / WEIGHTS
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        Toy.from_pretrained(tmp_path)


def test_weights_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    model = toy()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors["counts"]
    text = json.dumps(json.loads((tmp_path / CONFIG).read_text()))
    save_file(tensors, tmp_path / WEIGHTS, metadata={"settings": text})
    with pytest.raises(ValueError, match="does not hold the weights") as caught:
        Toy.from_pretrained(tmp_path)
    assert "counts" in str(caught.value)


def test_fingerprint_sees_every_tensor_its_name_and_its_shape() -> None:
    model = toy()
    before = fingerprint(model)
    assert len(before) == 32
    assert fingerprint(toy()) == before
    for name, tensor in model.state_dict().items():
        if tensor.numel():
            changed = toy()
            values = changed.state_dict()[name].reshape(-1)
            values[-1] = ~values[-1] if values.dtype == torch.bool else values[-1] + 1
            changed.load_state_dict({**changed.state_dict(), name: values.view_as(tensor)})
            assert fingerprint(changed) != before, name
    flat, wide = nn.Linear(1, 6, bias=False), nn.Linear(2, 3, bias=False)
    wide.weight.data = flat.weight.data.view(3, 2)
    assert fingerprint(flat) != fingerprint(wide)


def test_fingerprint_sees_settings_and_class_that_the_weights_do_not_show() -> None:
    prints = {
        fingerprint(toy()),
        fingerprint(toy(scale=0.2)),
        fingerprint(OtherToy(ToyConfig())),
    }
    assert len(prints) == 3


def test_fingerprint_is_that_of_the_model_that_comes_back(tmp_path: Path) -> None:
    model = toy()
    model.save_pretrained(tmp_path)
    assert fingerprint(Toy.from_pretrained(tmp_path)) == fingerprint(model)


def test_fingerprint_does_not_depend_on_the_layout_in_memory() -> None:
    model = toy()
    before = fingerprint(model)
    model.turned = model.turned.contiguous()
    assert fingerprint(model) == before


def test_fingerprint_sees_the_type_of_equal_bytes() -> None:
    one, other = nn.Module(), nn.Module()
    one.register_buffer("numbers", torch.zeros(3, dtype=torch.int32))
    other.register_buffer("numbers", torch.zeros(3, dtype=torch.float32))
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_of_another_precision_comes_back_in_it(dtype: torch.dtype, tmp_path: Path) -> None:
    model = toy().to(dtype)
    with torch.no_grad():
        model.first.weight.normal_()
    model.save_pretrained(tmp_path)
    again = Toy.from_pretrained(tmp_path)
    assert fingerprint(again) == fingerprint(model)
    assert {name: t.dtype for name, t in again.state_dict().items()} == {
        name: t.dtype for name, t in model.state_dict().items()
    }
    assert torch.equal(again.first.weight, model.first.weight)
    assert again.tied.weight is again.first.weight
    assert again.first.weight.requires_grad


def test_a_model_is_stored_as_the_same_bytes_each_time(tmp_path: Path) -> None:
    model = toy()
    files = []
    for number in range(8):
        model.save_pretrained(tmp_path / str(number))
        files.append([(tmp_path / str(number) / name).read_bytes() for name in (CONFIG, WEIGHTS)])
    assert all(file == files[0] for file in files)
