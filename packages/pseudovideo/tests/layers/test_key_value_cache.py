"""The memory of keys and values."""

import pytest
import torch

from pseudovideo.layers import KeyValueCache


def test_what_was_appended_comes_back_in_order_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, 2, 3, 7, 4, generator=generator, dtype=torch.float64)
    cache = KeyValueCache(2, 3, 7, 4, like=keys)
    for start, end in ((0, 3), (3, 4), (4, 7)):
        k, v = cache.append(keys[:, :, start:end], values[:, :, start:end])
        assert cache.length == end
        assert torch.equal(k, keys[:, :, :end])
        assert torch.equal(v, values[:, :, :end])


def test_a_full_cache_takes_no_more() -> None:
    token = torch.zeros(1, 1, 1, 2)
    cache = KeyValueCache(1, 1, 1, 2, like=token)
    cache.append(token, token)
    with pytest.raises(ValueError, match="holds 1 tokens, got token 2"):
        cache.append(token, token)
