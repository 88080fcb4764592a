from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from damage import flipped_bits
from probseq.files import DamagedFileError
from probseq.pretrained import fingerprint
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.spec import TokenizerConfig
from pseudovideo.token_cache import TokenCache, cached_tokens
from pseudovideo.tokenizers.tokenizer import Tokenizer, build_tokenizer

BLUR = PseudoVideoConfig(num_frames=4)
NOISE = PseudoVideoConfig(num_frames=4, kind="high-order-noise", beta_max=0.3)


def small_tokenizer(seed: int = 0, **changes: Any) -> Tokenizer:
    torch.manual_seed(seed)
    settings = {
        "num_frames": 4,
        "image_size": 16,
        "channels": 1,
        "dim": 16,
        "num_heads": 2,
        "spatial_depth": 1,
        "temporal_depth": 1,
        "codebook_size": 64,
        "code_dim": 4,
    }
    return build_tokenizer(TokenizerConfig(**{**settings, **changes}))


@pytest.fixture(scope="module")
def tokenizer(digits: Tensor) -> Tokenizer:
    """A tokenizer whose codebook was set by one batch of digits."""
    tokenizer = small_tokenizer()
    torch.manual_seed(1)
    with torch.no_grad():
        tokenizer.train()(pseudo_videos(digits[:64], BLUR))
    return tokenizer


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_tokens_on_disk_are_those_of_each_image_by_itself(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    images = digits[:50]
    written = cached_tokens(tmp_path / "new" / "tokens", tokenizer, images, BLUR, batch_size=23)
    expected = torch.cat([tokenizer.encode(pseudo_videos(image[None], BLUR)) for image in images])
    opened = TokenCache.open(tmp_path / "new" / "tokens")
    for cache in (written, opened):
        assert cache.tokens.dtype == torch.int16
        assert torch.equal(cache.tokens.long(), expected)
        assert cache.grid == tokenizer.grid
        assert PseudoVideoConfig.from_dict(cache.corruption) == BLUR
        assert cache.tokenizer_fingerprint == fingerprint(tokenizer)
    assert len(expected.unique()) > 20
    assert leftovers(tmp_path / "new" / "tokens") == []


def test_tokens_are_mapped_from_a_plain_file_that_nothing_changes(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    cache = cached_tokens(tmp_path, tokenizer, digits[:10], BLUR)
    file = tmp_path / "tokens.safetensors"
    before = file.read_bytes()
    assert torch.equal(load_file(file)["tokens"], cache.tokens)
    if Path("/proc/self/maps").exists():
        assert str(file) in Path("/proc/self/maps").read_text()
    cache.tokens.fill_(0)
    assert file.read_bytes() == before


def test_noise_is_the_draw_of_seed_and_epoch_zero_whatever_the_batches(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    images = digits[:30]
    one = cached_tokens(tmp_path / "1", tokenizer, images, NOISE, seed=5, batch_size=7)
    other = cached_tokens(tmp_path / "2", tokenizer, images, NOISE, seed=5, batch_size=30)
    seed = cached_tokens(tmp_path / "3", tokenizer, images, NOISE, seed=6)
    expected = tokenizer.encode(pseudo_videos(images, NOISE, seed=5, epoch=0))
    assert torch.equal(one.tokens.long(), expected)
    assert torch.equal(one.tokens, other.tokens)
    assert (one.tokens != seed.tokens).float().mean() > 0.05
    assert one.seed == 5


def test_bytes_are_encoded_as_values_between_minus_one_and_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, seen = small_tokenizer(), list[Tensor]()
    inner = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda videos: seen.append(videos) or inner(videos))
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    cached_tokens(tmp_path, tokenizer, pixels, BLUR)
    expected = torch.tensor([2 * level / 255 - 1 for level in range(256)])
    torch.testing.assert_close(seen[0][0, -1].flatten(), expected, rtol=0, atol=1e-6)


# What does not fit


def test_tokens_of_the_same_are_read_and_those_of_others_are_written_anew(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    def stamp() -> int:
        return (tmp_path / "tokens.safetensors").stat().st_mtime_ns

    first, before = cached_tokens(tmp_path, tokenizer, digits[:8], BLUR), stamp()
    again = cached_tokens(tmp_path, tokenizer, digits[:8], BLUR)
    assert torch.equal(first.tokens, again.tokens)
    assert stamp() == before
    touched = digits[:8].clone()
    touched[-1, 0, -1, -1] += 1e-6
    faster = PseudoVideoConfig(num_frames=4, blur_rate=0.050001)
    for made in (
        (small_tokenizer(9), digits[:8], BLUR),
        (tokenizer, touched, BLUR),
        (tokenizer, digits[:8].flip(0), BLUR),
        (tokenizer, digits[:7], BLUR),
        (tokenizer, digits[:8], faster),
    ):
        cached_tokens(tmp_path, *made)
        assert stamp() != before
        before = stamp()
    cached_tokens(tmp_path, tokenizer, digits[:8], faster, seed=1)
    assert stamp() != before


@pytest.mark.parametrize(
    ("settings", "config", "spoil", "message"),
    [
        ({}, PseudoVideoConfig(num_frames=8), None, "num_frames=4 as the tokenizer, got 8"),
        ({"codebook_size": 32769}, BLUR, None, "at most 32768 codes.* got 32769"),
        ({"channels": 3}, BLUR, None, "channels"),
        ({"image_size": 8}, BLUR, None, r"\(b, 4, 1, 8, 8\)"),
        ({}, BLUR, lambda x: x + 1.5, "-1"),
        ({}, BLUR, lambda x: x * torch.nan, "-1"),
        ({}, BLUR, lambda x: x[:0], "n >= 1"),
        ({}, BLUR, lambda x: x[0], r"\(n, channels, height, width\)"),
        ({}, BLUR, lambda x: x.long(), "floating point or uint8, got torch.int64"),
    ],
)
@pytest.mark.usefixtures("plain_calls")
def test_images_and_settings_that_do_not_fit_are_refused(
    digits: Tensor,
    tmp_path: Path,
    settings: dict[str, int],
    config: PseudoVideoConfig,
    spoil: Callable[[Tensor], Tensor] | None,
    message: str,
) -> None:
    images = digits[:5] if spoil is None else spoil(digits[:5])
    with pytest.raises(ValueError, match=message):
        cached_tokens(tmp_path, small_tokenizer(**settings), images, config)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match=r"tokens\.safetensors"):
        TokenCache.open(tmp_path)


def test_the_last_of_32768_codes_survives_int16(
    digits: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(codebook_size=2**15)
    last = torch.full((5, 2, 4, 4), 2**15 - 1)
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: last)
    cache = cached_tokens(tmp_path, tokenizer, digits[:5], BLUR)
    assert torch.equal(cache.tokens.long(), last)


# Crashes and damage


def test_a_cache_stays_until_the_new_one_is_whole(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    old = cached_tokens(tmp_path, tokenizer, digits[:9], BLUR).tokens.clone()

    def fail(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_tokens(tmp_path, tokenizer, digits[9:20], BLUR, progress=fail)
    assert leftovers(tmp_path) == []
    assert torch.equal(TokenCache.open(tmp_path).tokens, old)
    assert len(cached_tokens(tmp_path, tokenizer, digits[9:20], BLUR).tokens) == 11


def test_every_flipped_bit_is_told(tokenizer: Tokenizer, digits: Tensor, tmp_path: Path) -> None:
    cached_tokens(tmp_path, tokenizer, digits[:4], BLUR, labels=torch.arange(4))
    for _ in flipped_bits(tmp_path / "tokens.safetensors", 100):
        with pytest.raises(DamagedFileError, match="tokens"):
            TokenCache.open(tmp_path)
    TokenCache.open(tmp_path)


def test_autocast_does_not_change_the_tokens(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    plain = cached_tokens(tmp_path / "plain", tokenizer, digits[:50], BLUR)
    with torch.autocast("cpu", torch.bfloat16):
        cast = cached_tokens(tmp_path / "cast", tokenizer, digits[:50], BLUR)
    assert torch.equal(cast.tokens, plain.tokens)


# Labels


def images_of(n: int) -> Tensor:
    return torch.rand(n, 1, 16, 16, generator=torch.Generator().manual_seed(7)) * 2 - 1


def test_labels_are_stored_beside_tokens_and_checked(tmp_path: Path) -> None:
    tokenizer, given = small_tokenizer(), images_of(6)
    labels = torch.tensor([0, 2, 1, 1, 0, 2])
    cache = cached_tokens(tmp_path, tokenizer, given, BLUR, labels=labels)
    assert torch.equal(cache.labels, labels)
    assert cache.labels.dtype == torch.int64
    again = cached_tokens(tmp_path, tokenizer, given, BLUR, labels=labels.flip(0))
    assert torch.equal(again.labels, labels.flip(0))


def test_a_cache_that_lacks_the_labels_is_written_anew_and_one_that_has_them_will_do(
    tmp_path: Path,
) -> None:
    tokenizer, given, labels = small_tokenizer(), images_of(4), torch.tensor([1, 0, 1, 0])
    assert cached_tokens(tmp_path, tokenizer, given, BLUR).labels is None
    found = cached_tokens(tmp_path, tokenizer, given, BLUR, labels=labels)
    assert torch.equal(found.labels, labels)
    assert torch.equal(cached_tokens(tmp_path, tokenizer, given, BLUR).labels, labels)


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    "labels", [torch.zeros(3, dtype=torch.int64), torch.zeros(4), torch.tensor([0, -1, 0, 0])]
)
def test_labels_that_are_none_are_refused(labels: Tensor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="labels must be"):
        cached_tokens(tmp_path, small_tokenizer(), images_of(4), BLUR, labels=labels)
    assert not (tmp_path / "tokens.safetensors").exists()
