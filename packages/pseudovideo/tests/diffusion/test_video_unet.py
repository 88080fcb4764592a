import copy

import pytest
import torch
from tiny_video import SIZES, frames, shaken

from pseudovideo.diffusion.frame_windows import FrameWindow, Stage, stage_window
from pseudovideo.diffusion.temporal import distance_features, relative_positions
from pseudovideo.diffusion.unet import build_unet
from pseudovideo.diffusion.video_unet import VideoUNet
from pseudovideo.spec import UNetConfig

CONFIG = UNetConfig(
    **{name: value for name, value in SIZES.items() if name not in ("num_steps", "schedule")}
)


@pytest.fixture(scope="module")
def networks():
    """Both kinds with the same weights."""
    both = shaken(VideoUNet(CONFIG)), VideoUNet(CONFIG, one_way=True).double().eval()
    both[1].load_state_dict(both[0].state_dict())
    return both[0], both[1].requires_grad_(False)


def pixels(b, s, seed=1):
    return frames(b, s, 1, 8, 8, seed=seed, scale=1.0)


def far(a, b):
    return float((a - b).abs().max()) > 1e-4


TIMES = torch.tensor([700.0, 20.5], dtype=torch.float64)
WINDOW = stage_window(Stage((1, 2), (3,)), 2)


def block_by_block(network, pixels, times, window, allowed):
    """The network written out: what lies between the attentions, and these in two steps."""
    unet, sites = network.unet, iter(network.temporal)
    videos, slots = pixels.shape[:2]
    if network.one_way:
        times = times[:, None].masked_fill(window.observed, 0.0)
    times = times.view(videos, -1).expand(videos, slots).flatten()
    temb = unet.time_embedding(unet.time_proj(times).to(pixels.dtype))
    indicator = window.observed.to(pixels.dtype)[..., None, None, None]
    x = torch.cat([pixels, indicator.expand_as(pixels[:, :, :1])], dim=2).flatten(0, 1)
    features = distance_features(window.frames, window.frames, x.dtype)
    mask = torch.where(allowed, 0.0, -torch.inf).to(x.dtype)
    temb_rows = temb.unflatten(0, (videos, slots))

    def attend(x, attention):
        site = next(sites)
        (positions,) = relative_positions([site], features, temb_rows, temb_rows)
        x, _ = site(x, positions, mask)
        rows = attention.group_norm(x.flatten(2)).mT
        q, k, v = (
            to(rows).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
            for to in (attention.to_q, attention.to_k, attention.to_v)
        )
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        out = attention.to_out[0]((weights @ v).transpose(1, 2).flatten(2))
        return x + out.mT.unflatten(-1, x.shape[2:])

    x = unet.conv_in(x)
    skips = [x]
    for block in unet.down_blocks:
        for number, resnet in enumerate(block.resnets):
            x = resnet(x, temb)
            x = attend(x, block.attentions[number]) if hasattr(block, "attentions") else x
            skips.append(x)
        for down in block.downsamplers or ():
            x = down(x)
            skips.append(x)
    first, second = unet.mid_block.resnets
    x = second(attend(first(x, temb), unet.mid_block.attentions[0]), temb)
    for block in unet.up_blocks:
        for number, resnet in enumerate(block.resnets):
            x = resnet(torch.cat([x, skips.pop()], dim=1), temb)
            x = attend(x, block.attentions[number]) if hasattr(block, "attentions") else x
        for up in block.upsamplers or ():
            x = up(x)
    assert next(sites, None) is None
    out = unet.conv_out(torch.nn.functional.silu(unet.conv_norm_out(x)))
    return out.unflatten(0, (videos, slots))


@pytest.mark.parametrize("one_way", [False, True])
def test_frames_attend_to_each_other_first_at_every_attention(networks, one_way):
    allowed = torch.ones(2, 3, 3, dtype=torch.bool)
    if one_way:
        allowed[:, :2, 2] = False  # observed frames don't see the latent one
    x = pixels(2, 3)
    expected = block_by_block(networks[one_way], x, TIMES, WINDOW, allowed)
    found = networks[one_way](x, TIMES, WINDOW)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_a_copy_has_attention_of_its_own():
    torch.manual_seed(0)
    network = shaken(VideoUNet(CONFIG))
    x = pixels(2, 3)
    expected = network.requires_grad_()(x, TIMES, WINDOW)
    # While the first pass' gradients may still be asked for.
    other = copy.deepcopy(network)
    with torch.no_grad():
        for site in network.temporal:
            for parameter in site.parameters():
                parameter.zero_()
        assert far(network(x, TIMES, WINDOW), expected)
        torch.testing.assert_close(other(x, TIMES, WINDOW), expected, rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.usefixtures("plain_calls")
def test_a_pass_is_one_graph_for_the_compiler():
    torch.manual_seed(0)
    network = shaken(VideoUNet(CONFIG))
    torch.compiler.reset()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    x = pixels(2, 3)
    torch.testing.assert_close(
        compiled(x, TIMES, WINDOW), network(x, TIMES, WINDOW), rtol=0, atol=1e-11
    )


def test_a_pass_that_failed_leaves_no_trace(networks):
    x = pixels(2, 3)
    expected = networks[0](x, TIMES, WINDOW)
    with pytest.raises(RuntimeError):
        networks[0](x[..., :7], TIMES, WINDOW)
    assert torch.equal(networks[0](x, TIMES, WINDOW), expected)
    one_frame = FrameWindow(*(part[:, :1] for part in WINDOW))
    with pytest.raises(RuntimeError):
        networks[0](x[:, :1, :, :7], TIMES, one_frame)
    frame = torch.cat([x[:, 0], torch.ones_like(x[:, 0])], dim=1)
    assert networks[0].unet(frame, TIMES).sample.isfinite().all()


def test_a_video_of_one_frame_is_the_image_model():
    torch.manual_seed(0)
    image = shaken(build_unet(CONFIG, in_channels=1, out_channels=2))
    video = VideoUNet(CONFIG).double().eval()
    weights = image.state_dict()
    # The indicator is 0 for a latent frame, so what it is multiplied with may be anything.
    weights["conv_in.weight"] = torch.cat(
        [weights["conv_in.weight"], torch.ones_like(weights["conv_in.weight"])], dim=1
    )
    video.unet.load_state_dict(weights)
    window = stage_window(Stage((), (0,)), 2)
    x = pixels(2, 1)
    out = video(x, TIMES, window)[:, 0]
    torch.testing.assert_close(out, image(x[:, 0], TIMES).sample, rtol=0, atol=1e-12)
    assert out.abs().max() > 0.1


@pytest.mark.parametrize("one_way", [False, True])
def test_padding_changes_nothing(networks, one_way):
    network = networks[one_way]
    for stage in (Stage((), (0, 1)), Stage((1,), (2,))):
        alone = stage_window(stage, 2)
        slots = [alone.frames, alone.observed, alone.latent]
        x = pixels(2, 2)
        for filled, frame in ((pixels(2, 2, seed=5), 0), (1e3 * pixels(2, 2, seed=6), 3)):
            rest = [torch.full((2, 2), frame), *[torch.zeros(2, 2, dtype=torch.bool)] * 2]
            padded = FrameWindow(*(torch.cat(pair, 1) for pair in zip(slots, rest, strict=True)))
            out = network(torch.cat([x, filled], 1), TIMES, padded)[:, :2]
            torch.testing.assert_close(out, network(x, TIMES, alone), rtol=0, atol=1e-11)


def test_what_is_remembered_of_observed_frames_replaces_them(networks):
    one_way = networks[1]
    x = pixels(2, 3)
    memories = one_way.remember(x[:, :2], WINDOW.frames[:, :2])
    latent = FrameWindow(*(part[:, 2:] for part in WINDOW))
    out = one_way(x[:, 2:], TIMES, latent, memories)
    torch.testing.assert_close(out, one_way(x, TIMES, WINDOW)[:, 2:], rtol=0, atol=1e-11)
    forgotten = one_way(x[:, 2:], TIMES, latent)
    assert far(out, forgotten)


def test_without_one_way_attention_nothing_can_be_remembered(networks):
    with pytest.raises(ValueError, match="one_way must be True"):
        networks[0].remember(pixels(2, 2), WINDOW.frames[:, :2])


def test_a_new_network_predicts_zero_and_treats_frames_one_by_one():
    torch.manual_seed(0)
    network = VideoUNet(CONFIG).double().eval()
    x = pixels(2, 3)
    assert not network(x, TIMES, WINDOW).any()
    shaken(network.unet)
    single = [
        network(x[:, i, None], TIMES, FrameWindow(*(part[:, i, None] for part in WINDOW)))
        for i in range(3)
    ]
    torch.testing.assert_close(network(x, TIMES, WINDOW), torch.cat(single, 1), rtol=0, atol=1e-11)
