import math

import torch
from torch.nn import functional as F

from pseudovideo.diffusion.temporal import (
    RelativePositions,
    TemporalAttention,
    distance_features,
    relative_positions,
)


def attention(*, channels=8, heads=2, groups=2, seed=0):
    torch.manual_seed(seed)
    layer = TemporalAttention(channels, num_heads=heads, num_groups=groups, time_channels=6)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return layer.double()


def inputs(b=2, s=3, *, channels=8, size=2, seed=1):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return draw(b * s, channels, size, size), draw(b * s, 6)


def features(frames, others=None, dtype=torch.float64):
    return distance_features(frames, frames if others is None else others, dtype)


def attend(layer, hidden, temb, frames, allowed, memory=(None, None, None)):
    """The attention of some frames, and what is left of them."""
    kept, kept_frames, kept_temb = memory
    temb = temb.unflatten(0, frames.shape)
    others, other_temb = frames, temb
    if kept is not None:
        others = torch.cat([kept_frames, frames], 1)
        other_temb = torch.cat([kept_temb, temb], 1)
    phi = features(frames, others, hidden.dtype)
    (positions,) = relative_positions([layer], phi, temb, other_temb)
    mask = torch.where(allowed, 0.0, -math.inf).to(hidden.dtype)
    out, own = layer(hidden, positions, mask, kept)
    return out, (own, frames, temb)


FRAMES = torch.tensor([[0, 1, 2], [3, 5, 2]])
ALL = torch.ones(2, 3, 3, dtype=torch.bool)


def slow(layer, hidden, temb, frames, allowed):
    """Every number by loops over videos, places, heads and pairs of frames."""
    b, s = frames.shape
    _, channels, height, width = hidden.shape
    heads = layer.num_heads
    f = channels // heads
    hidden, temb = hidden.view(b, s, channels, height, width), temb.view(b, s, -1)

    def positions(net, d, embedding):
        features = torch.tensor(
            [math.log(1 + max(d, 0)), math.log(1 + max(-d, 0)), float(d == 0)], dtype=torch.float64
        )
        inner = net.time(embedding) + net.distance(features)
        return net.out(inner * torch.sigmoid(inner))

    out = hidden.clone()
    for video in range(b):
        normed = [
            F.group_norm(hidden[video, i][None], 2, layer.norm.weight, layer.norm.bias, 1e-5)[0]
            for i in range(s)
        ]
        for y in range(height):
            for x in range(width):
                qkv = [layer.to_qkv(frame[:, y, x]) for frame in normed]
                for i in range(s):
                    result = torch.zeros(channels, dtype=torch.float64)
                    for h in range(heads):
                        part = slice(h * f, (h + 1) * f)
                        q = [row[:channels][part] for row in qkv]
                        k = [row[channels : 2 * channels][part] for row in qkv]
                        v = [row[2 * channels :][part] for row in qkv]
                        logits, values = [], []
                        for j in range(s):
                            if not allowed[video, i, j]:
                                continue
                            d = int(frames[video, i] - frames[video, j])
                            for_k = positions(layer.positions_k, d, temb[video, i])[part]
                            for_q = positions(layer.positions_q, -d, temb[video, j])[part]
                            for_v = positions(layer.positions_v, d, temb[video, i])[part]
                            logits.append((q[i] @ k[j] + q[i] @ for_k + k[j] @ for_q) / f**0.5)
                            values.append(v[j] + for_v)
                        weights = torch.stack(logits).exp()
                        weights = weights / weights.sum()
                        result[part] = sum(w * u for w, u in zip(weights, values, strict=True))
                    out[video, i, :, y, x] += layer.to_out(result)
    return out.flatten(0, 1)


def test_attention_is_the_formula_worked_out_in_loops():
    layer = attention()
    hidden, temb = inputs()
    allowed = ALL.clone()
    allowed[0, 0, 2] = allowed[1, 1, 0] = False
    with torch.no_grad():
        out, _ = attend(layer, hidden, temb, FRAMES, allowed)
        torch.testing.assert_close(
            out, slow(layer, hidden, temb, FRAMES, allowed), rtol=0, atol=1e-12
        )


def test_relative_positions_tell_before_from_after():
    torch.manual_seed(0)
    net = RelativePositions(4, 2, 6).double()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)
    vectors = net(
        features(torch.tensor([[2]]), torch.tensor([[0, 4, 2]])),
        torch.randn(1, 1, 6, dtype=torch.float64),
    )[0, 0]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert (vectors[a] - vectors[b]).abs().min() > 1e-3


def test_a_new_site_leaves_frames_as_they_are_bit_for_bit():
    layer = TemporalAttention(8, num_heads=2, num_groups=2, time_channels=6)
    hidden, temb = (part.float() for part in inputs())
    assert torch.equal(attend(layer, hidden, temb, FRAMES, ALL)[0], hidden)


def test_new_relative_positions_are_zero():
    net = RelativePositions(4, 2, 6)
    assert not net(
        features(torch.tensor([[3]]), torch.tensor([[0, 4]]), torch.float32), torch.randn(1, 1, 6)
    ).any()


def test_positions_of_many_sites_are_those_of_each():
    sites = [attention(channels=channels, seed=channels) for channels in (8, 4, 8)]
    temb = inputs()[1].unflatten(0, (2, 3))
    found = relative_positions(sites, features(FRAMES), temb, temb)
    for site, positions in zip(sites, found, strict=True):
        for net, vectors, order in [
            (site.positions_k, positions.for_keys, (0, 1, 3, 2, 4)),
            (site.positions_v, positions.for_values, (0, 1, 4, 2, 3)),
        ]:
            expected = net(features(FRAMES), temb)
            torch.testing.assert_close(vectors.permute(order), expected, rtol=0, atol=1e-13)
        expected = site.positions_q(features(FRAMES), temb).transpose(2, 3)
        torch.testing.assert_close(positions.for_queries, expected, rtol=0, atol=1e-13)


def test_a_frame_that_may_not_be_seen_has_no_influence():
    layer, (hidden, temb) = attention(), inputs()
    allowed = ALL.clone()
    allowed[:, :2, 2] = False
    hidden.requires_grad_()
    temb.requires_grad_()
    out, _ = attend(layer, hidden, temb, FRAMES, allowed)
    seen = out.unflatten(0, (2, 3))[:, :2]
    direction = torch.randn(seen.shape, generator=torch.Generator().manual_seed(2)).double()
    by_hidden, by_temb = torch.autograd.grad((seen * direction).sum(), [hidden, temb])
    for gradient in (by_hidden, by_temb):
        assert not gradient.unflatten(0, (2, 3))[:, 2].any()
        assert gradient.unflatten(0, (2, 3))[:, :2].abs().max() > 1e-3


def test_remembered_frames_are_attended_to_as_if_they_were_there():
    layer, (hidden, temb) = attention(), inputs()
    split = hidden.unflatten(0, (2, 3)), temb.unflatten(0, (2, 3))
    allowed = ALL.clone()
    allowed[:, :2, 2] = False
    out, _ = attend(layer, hidden, temb, FRAMES, allowed)
    first = [part[:, :2].flatten(0, 1) for part in split]
    last = [part[:, 2:].flatten(0, 1) for part in split]
    kept, memory = attend(layer, *first, FRAMES[:, :2], ALL[:, :2, :2])
    new, _ = attend(layer, *last, FRAMES[:, 2:], ALL[:, 2:], memory)
    whole = out.unflatten(0, (2, 3))
    torch.testing.assert_close(kept.unflatten(0, (2, 2)), whole[:, :2], rtol=0, atol=1e-12)
    torch.testing.assert_close(new.unflatten(0, (2, 1)), whole[:, 2:], rtol=0, atol=1e-12)


def test_all_weights_are_learned():
    layer, (hidden, temb) = attention(), inputs()
    attend(layer, hidden, temb, FRAMES, ALL)[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0, name
