import os
import signal
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probseq.files import DamagedFileError
from probseq.testing.damage import flipped_bits
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.pretrained import fingerprint
from pseudovideo.spec import TokenizerConfig
from pseudovideo.token_cache import TokenCache, cached_tokens, hash_images, write_token_cache
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
    written = write_token_cache(tmp_path / "new" / "tokens", tokenizer, images, BLUR, batch_size=23)
    expected = torch.cat([tokenizer.encode(pseudo_videos(image[None], BLUR)) for image in images])
    opened = TokenCache.open(tmp_path / "new" / "tokens", tokenizer=tokenizer, config=BLUR)
    for cache in (written, opened):
        assert cache.tokens.dtype == torch.int16
        assert torch.equal(cache.tokens.long(), expected)
        assert cache.grid == tokenizer.grid
        assert cache.corruption == BLUR
        assert cache.tokenizer_fingerprint == fingerprint(tokenizer)
    assert len(expected.unique()) > 20
    assert leftovers(tmp_path / "new" / "tokens") == []


def test_tokens_are_mapped_from_a_plain_numpy_file_that_nothing_changes(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    cache = write_token_cache(tmp_path, tokenizer, digits[:10], BLUR)
    file = tmp_path / "tokens.npy"
    before = file.read_bytes()
    plain = np.load(file, allow_pickle=False)
    assert plain.dtype == np.dtype("<i2")
    assert (plain == cache.tokens.numpy()).all()
    if Path("/proc/self/maps").exists():
        assert str(file) in Path("/proc/self/maps").read_text()
    cache.tokens.fill_(0)
    assert file.read_bytes() == before


def test_noise_is_the_draw_of_seed_and_epoch_zero_whatever_the_batches(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    images = digits[:30]
    one = write_token_cache(tmp_path / "1", tokenizer, images, NOISE, seed=5, batch_size=7)
    other = write_token_cache(tmp_path / "2", tokenizer, images, NOISE, seed=5, batch_size=30)
    seed = write_token_cache(tmp_path / "3", tokenizer, images, NOISE, seed=6)
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
    write_token_cache(tmp_path, tokenizer, pixels, BLUR)
    expected = torch.tensor([2 * level / 255 - 1 for level in range(256)])
    torch.testing.assert_close(seen[0][0, -1].flatten(), expected, rtol=0, atol=1e-6)


# What does not fit


def test_tokens_of_something_else_are_refused_with_what_differs(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    images = digits[:8]
    write_token_cache(tmp_path, tokenizer, images, BLUR, seed=3)
    TokenCache.open(tmp_path, tokenizer=tokenizer, config=BLUR, images=images, seed=3)
    touched = images.clone()
    touched[-1, 0, -1, -1] += 1e-6
    with pytest.raises(ValueError, match=f"another tokenizer: {fingerprint(tokenizer)}, not"):
        TokenCache.open(tmp_path, tokenizer=small_tokenizer(9))
    with pytest.raises(ValueError, match=r"another corruption: .*'blur'.*, not .*'repeat'"):
        TokenCache.open(tmp_path, config=PseudoVideoConfig(num_frames=4, kind="repeat"))
    with pytest.raises(ValueError, match=r"another corruption: .*0\.05.*, not .*0\.050001"):
        TokenCache.open(tmp_path, config=PseudoVideoConfig(num_frames=4, blur_rate=0.050001))
    with pytest.raises(ValueError, match="another images: "):
        TokenCache.open(tmp_path, images=touched)
    with pytest.raises(ValueError, match="another images: "):
        TokenCache.open(tmp_path, images=images[:7])
    with pytest.raises(ValueError, match="another seed: 3, not 0; write the cache anew"):
        TokenCache.open(tmp_path, seed=0)


def test_tokens_of_the_same_are_read_and_those_of_others_are_written_anew(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    def stamp() -> int:
        return (tmp_path / "tokens.npy").stat().st_mtime_ns

    first, before = cached_tokens(tmp_path, tokenizer, digits[:8], BLUR), stamp()
    again = cached_tokens(tmp_path, tokenizer, digits[:8], BLUR)
    assert torch.equal(first.tokens, again.tokens)
    assert stamp() == before
    other = cached_tokens(tmp_path, tokenizer, digits[8:16], BLUR)
    expected = tokenizer.encode(pseudo_videos(digits[8:16], BLUR))
    assert torch.equal(other.tokens.long(), expected)
    assert stamp() != before


def test_the_hash_of_images_knows_values_order_shape_and_type(digits: Tensor) -> None:
    images = digits[:6]
    hashes = {
        hash_images(variant)
        for variant in (images, images.flip(0), images.double(), images.flatten(2)[..., None])
    }
    assert len(hashes) == 4
    assert hash_images(images.mT.contiguous().mT) == hash_images(images)
    # The same bytes as numbers of another type.
    assert hash_images(images.view(torch.int32)) != hash_images(images)


@pytest.mark.parametrize(
    ("settings", "config", "spoil", "message"),
    [
        ({}, PseudoVideoConfig(num_frames=8), None, "num_frames=4 as the tokenizer, got 8"),
        ({"codebook_size": 32769}, BLUR, None, "at most 32768 codes.* got 32769"),
        ({"channels": 3}, BLUR, None, "channels"),
        ({"image_size": 8}, BLUR, None, r"\(4, 1, 8, 8\)"),
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
        write_token_cache(tmp_path, small_tokenizer(**settings), images, config)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match=r"has no file config\.json"):
        TokenCache.open(tmp_path)


def test_the_last_of_32768_codes_survives_int16(
    digits: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(codebook_size=2**15)
    last = torch.full((5, 2, 4, 4), 2**15 - 1)
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: last)
    cache = write_token_cache(tmp_path, tokenizer, digits[:5], BLUR)
    assert torch.equal(cache.tokens.long(), last)


# Crashes and damage


def kill_this_process(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_writer_leaves_nothing_that_opens_and_the_next_one_starts_anew(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path, processes: BaseContext
) -> None:
    writer = processes.Process(
        target=write_token_cache,
        args=(tmp_path, tokenizer, digits[:9], BLUR),
        kwargs={"batch_size": 3, "progress": kill_this_process},
    )
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert len(leftovers(tmp_path)) == 1
    with pytest.raises(FileNotFoundError, match=r"has no file config\.json"):
        TokenCache.open(tmp_path)
    cache = write_token_cache(tmp_path, tokenizer, digits[:9], BLUR)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "tokens.npy"]
    assert torch.equal(cache.tokens, TokenCache.open(tmp_path, images=digits[:9]).tokens)


def test_a_cache_stays_until_the_new_one_is_whole(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    old = write_token_cache(tmp_path, tokenizer, digits[:9], BLUR).tokens.clone()

    def fail(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_token_cache(tmp_path, tokenizer, digits[9:20], BLUR, progress=fail)
    assert leftovers(tmp_path) == []
    assert torch.equal(TokenCache.open(tmp_path, images=digits[:9]).tokens, old)
    new = write_token_cache(tmp_path, tokenizer, digits[9:20], BLUR)
    assert len(new.tokens) == 11
    with pytest.raises(ValueError, match="another images"):
        TokenCache.open(tmp_path, images=digits[:9])


def test_every_flipped_bit_and_every_missing_file_is_told_by_name(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    write_token_cache(tmp_path, tokenizer, digits[:4], BLUR, labels=torch.arange(4))
    for name in ("tokens.npy", "labels.npy", "config.json"):
        for _ in flipped_bits(tmp_path / name, 60):
            with pytest.raises(DamagedFileError, match=name):
                TokenCache.open(tmp_path)
    TokenCache.open(tmp_path)
    for name in ("tokens.npy", "config.json"):
        (tmp_path / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            TokenCache.open(tmp_path)


def test_autocast_does_not_change_the_tokens(
    tokenizer: Tokenizer, digits: Tensor, tmp_path: Path
) -> None:
    plain = write_token_cache(tmp_path / "plain", tokenizer, digits[:50], BLUR)
    with torch.autocast("cpu", torch.bfloat16):
        cast = write_token_cache(tmp_path / "cast", tokenizer, digits[:50], BLUR)
    assert torch.equal(cast.tokens, plain.tokens)


# Labels


def images_of(n: int) -> Tensor:
    return torch.rand(n, 1, 16, 16, generator=torch.Generator().manual_seed(7)) * 2 - 1


def test_labels_are_stored_beside_tokens_and_checked(tmp_path: Path) -> None:
    tokenizer, given = small_tokenizer(), images_of(6)
    labels = torch.tensor([0, 2, 1, 1, 0, 2])
    cache = write_token_cache(tmp_path, tokenizer, given, BLUR, labels=labels)
    assert torch.equal(cache.labels, labels)
    assert cache.labels.dtype == torch.int64
    again = TokenCache.open(tmp_path, tokenizer=tokenizer, labels=labels)
    assert torch.equal(again.labels, labels)
    with pytest.raises(ValueError, match=r"holds tokens with other labels; write the cache anew"):
        TokenCache.open(tmp_path, labels=labels.flip(0))
    np.save(tmp_path / "labels.npy", labels.flip(0).numpy())
    with pytest.raises(ValueError, match=r"labels\.npy is damaged"):
        TokenCache.open(tmp_path)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"labels\.npy is missing"):
        TokenCache.open(tmp_path)


def test_a_cache_that_lacks_the_labels_is_written_anew_and_one_without_drops_them(
    tmp_path: Path,
) -> None:
    tokenizer, given, labels = small_tokenizer(), images_of(4), torch.tensor([1, 0, 1, 0])
    assert write_token_cache(tmp_path, tokenizer, given, BLUR).labels is None
    with pytest.raises(ValueError, match=r"holds tokens with no labels"):
        TokenCache.open(tmp_path, labels=labels)
    found = cached_tokens(tmp_path, tokenizer, given, BLUR, labels=labels)
    assert torch.equal(found.labels, labels)
    assert torch.equal(cached_tokens(tmp_path, tokenizer, given, BLUR).labels, labels)
    # The file of labels is left there, and is no part of it.
    assert write_token_cache(tmp_path, tokenizer, given, BLUR).labels is None


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    "labels", [torch.zeros(3, dtype=torch.int64), torch.zeros(4), torch.tensor([0, -1, 0, 0])]
)
def test_labels_that_are_none_are_refused(labels: Tensor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="labels must be"):
        write_token_cache(tmp_path, small_tokenizer(), images_of(4), BLUR, labels=labels)
    assert not (tmp_path / "config.json").exists()
