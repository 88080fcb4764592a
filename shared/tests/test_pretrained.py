"""Models as folders: what comes back is what was stored, and nothing else is taken."""

import os
import re
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from damage import flipped_bits
from probseq.files import DamagedFileError, Format, read_json, sha256, write_json
from probseq.pretrained import CONFIG, WEIGHTS, Pretrained, fingerprint
from probseq.settings import Settings
from probseq.transformers import (
    AttentionConfig,
    BlockContext,
    KernelConfig,
    SoftmaxAttention,
    TransformerConfig,
    VisionTransformer,
)
from probseq.transformers.encoder import ConfiguredAttention
from small import BACKBONE, KINDS, small_batch, small_transformer


class ToyConfig(Settings):
    """Settings of every kind that can be stored."""

    width: int = 3
    scale: float = 0.1
    shape: tuple[tuple[int, ...], ...] = ((1,), (2, 3))
    name: str | None = None
    on: bool = True


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


class Wrapper(nn.Module):
    """As DistributedDataParallel holds what it is around."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize(
    "wrap",
    [torch.compile, Wrapper, lambda part: Wrapper(torch.compile(part)), weight_norm, spectral_norm],
)
def test_parts_that_are_wrapped_or_parametrised_are_stored_plain(
    wrap: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    model = toy()
    model.tied = nn.Linear(3, 3, bias=False)  # of its own, as parametrised weights can't be tied
    model.first = wrap(model.first)
    inner = model.first
    while (wrapped := getattr(inner, "_orig_mod", getattr(inner, "module", None))) is not None:
        inner = wrapped
    model.eval()
    with torch.no_grad():
        weight = inner.weight.clone()
    model.tied.weight = nn.Parameter(weight)
    before = torch.random.get_rng_state()
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    again = Toy.from_pretrained(tmp_path)
    assert torch.equal(again.first.weight, weight)
    assert torch.equal(again.first.bias, inner.bias)


def test_a_model_with_other_weights_than_its_class_is_refused_before_its_folder_has_them(
    tmp_path: Path,
) -> None:
    model = toy()
    model.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"weights of its class alone .*, and has extra\.weight"):
        model.save_pretrained(tmp_path)
    model = toy()
    model.first = nn.Identity()
    with pytest.raises(ValueError, match=r"must have the weights first\.weight to be stored"):
        model.save_pretrained(tmp_path)
    model = toy()
    model.first = nn.Linear(7, 7)
    with pytest.raises(ValueError, match=r"does not hold the weights that config\.json tells of"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_crash_between_the_two_files_gives_no_model_of_mixed_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(scale=0.1).save_pretrained(tmp_path)
    replace = os.replace

    def crash(source: Path, target: Path) -> None:
        if Path(target) == tmp_path / CONFIG:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    later = toy(scale=0.2)
    torch.nn.init.zeros_(later.first.bias)
    with pytest.raises(KeyboardInterrupt):
        later.save_pretrained(tmp_path)
    monkeypatch.undo()
    # Both settings fit these weights: only their hash tells them apart.
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged, or belongs to another"):
        Toy.from_pretrained(tmp_path)
    later.save_pretrained(tmp_path)
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


def test_a_model_of_another_class_is_refused(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds a Toy, not a OtherToy"):
        OtherToy.from_pretrained(tmp_path)


class Stored(KernelConfig):
    """Settings of attention that somebody has written."""

    shared: bool = True


def transformer(kind: str = "vision", attention: AttentionConfig | None = None) -> Any:
    backbone = TransformerConfig(**BACKBONE, pooling="cls", norm="post")
    context = BlockContext(backbone, 0, 7, num_data=9)
    configured = ConfiguredAttention(attention or Stored(initial_variance=0.3), context)
    return small_transformer(kind, configured, pooling="cls", norm="post")


@pytest.mark.parametrize("kind", KINDS)
def test_a_transformer_comes_back_with_the_settings_of_its_attention(
    kind: str, tmp_path: Path
) -> None:
    model = transformer(kind).eval()
    model.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path)
    assert fingerprint(back) == fingerprint(model) != fingerprint(transformer(kind, KernelConfig()))
    assert torch.equal(back(small_batch(kind)).logits, model(small_batch(kind)).logits)
    assert back.to_settings() == model.to_settings()


def test_attention_is_read_from_packages_that_are_imported_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="must be built of settings of its attention to be stored"):
        small_transformer("vision", lambda _: SoftmaxAttention(8, 2)).save_pretrained(tmp_path)
    transformer().save_pretrained(tmp_path)
    for name, told in (
        ("mine.spec.Linear", "the attention is mine.spec.Linear: import mine first"),
        ("os.system", "must have settings of attention, got os.system"),
        ("probseq.transformers.spec.TransformerConfig", "must have settings of attention"),
        ("probseq.nowhere.Config", "No module named"),
    ):
        edit(tmp_path, lambda head, name=name: head["config"]["attention"].update({"class": name}))
        with pytest.raises(ValueError, match=told):
            VisionTransformer.from_pretrained(tmp_path)
    assert "mine" not in sys.modules
    edit(tmp_path, lambda head: head["config"].pop("sizes"))
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        VisionTransformer.from_pretrained(tmp_path)


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change `config.json` with its hash, as a writer of another version would."""
    head = read_json(folder / CONFIG, Format("model", 3))
    head["files"][WEIGHTS] = sha256(folder / WEIGHTS)
    change(head)
    write_json(folder / CONFIG, Format("model", 3), head)


@pytest.mark.parametrize("make", [toy, transformer])
def test_a_model_goes_to_the_hub_and_comes_back_with_its_hashes_checked(
    make: Callable[[], Pretrained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, there = pytest.importorskip("huggingface_hub"), tmp_path / "there"

    def upload(repo_id: str, folder_path: Path) -> str:
        shutil.copytree(folder_path, there)
        return f"hub/{repo_id}"

    def download(name: str, allow_patterns: list[str], revision: str | None = None) -> str:
        assert (name, set(allow_patterns)) == ("me/toy", {CONFIG, WEIGHTS})
        return str(there)

    named = types.SimpleNamespace(repo_id="me/toy")
    monkeypatch.setattr(hub, "create_repo", lambda *_, **__: named)
    monkeypatch.setattr(hub, "upload_folder", upload)
    monkeypatch.setattr(hub, "snapshot_download", download)
    assert make().push_to_hub("toy") == "hub/me/toy"
    assert fingerprint(type(make()).from_pretrained("me/toy")) == fingerprint(make())
    (there / WEIGHTS).write_bytes(b"another")
    with pytest.raises(DamagedFileError, match=WEIGHTS):
        type(make()).from_pretrained("me/toy")


def test_settings_of_another_version_are_refused(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    edit(tmp_path, lambda values: values["config"].update(heads=3))
    with pytest.raises(ValueError, match=r"config\.json cannot be read: .* written by another"):
        Toy.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_one_flipped_bit_anywhere_in_a_file_is_refused_by_the_files_name(
    name: str, tmp_path: Path
) -> None:
    toy().save_pretrained(tmp_path)
    for _ in flipped_bits(tmp_path / name, 60):
        with pytest.raises(DamagedFileError, match=re.escape(name)):
            Toy.from_pretrained(tmp_path)
    Toy.from_pretrained(tmp_path)


def test_weights_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors["counts"]
    save_file(tensors, tmp_path / WEIGHTS)
    edit(tmp_path, lambda head: None)
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


def test_fingerprint_of_a_wrapped_model_is_the_plain_ones() -> None:
    model = toy()
    expected = fingerprint(model)
    assert fingerprint(torch.compile(model)) == fingerprint(nn.DataParallel(model)) == expected
    model.tied = torch.compile(model.tied)
    assert fingerprint(model) == expected


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
