import pytest
import torch
from tiny_video import SIZES, frames, shaken

from pseudovideo.diffusion.stages import Stage, Window, draw_windows, stage_window
from pseudovideo.diffusion.unet import UNetConfig, build_unet
from pseudovideo.diffusion.video_unet import VideoUNet

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
            padded = Window(*(torch.cat(pair, 1) for pair in zip(slots, rest, strict=True)))
            out = network(torch.cat([x, filled], 1), TIMES, padded)[:, :2]
            torch.testing.assert_close(out, network(x, TIMES, alone), rtol=0, atol=1e-11)


def test_the_observed_pixels_the_indicator_and_the_frame_numbers_matter(networks):
    x = pixels(2, 3)
    for network in networks:
        out = network(x, TIMES, WINDOW)[:, 2]
        other = x.clone()
        other[:, 0] += 0.5
        assert far(network(other, TIMES, WINDOW)[:, 2], out)
        moved = WINDOW._replace(frames=torch.tensor([[0, 2, 3]]).expand(2, -1))
        assert far(network(x, TIMES, moved)[:, 2], out)
        swapped = Window(WINDOW.frames, torch.zeros_like(WINDOW.observed), ~WINDOW.latent)
        assert far(
            network(x, TIMES, swapped._replace(latent=torch.ones_like(WINDOW.latent)))[:, 2], out
        )


def test_videos_of_a_batch_do_not_see_each_other(networks):
    x, times = pixels(6, 3), torch.linspace(0, 999, 6, dtype=torch.float64)
    window = draw_windows(6, num_frames=4, context=2, generator=torch.Generator().manual_seed(1))
    assert len(set(window.observed.sum(1).tolist())) == 2
    for network in networks:
        whole = network(x, times, window)
        for row in range(6):
            single = network(
                x[row, None], times[row, None], Window(*(part[row, None] for part in window))
            )
            torch.testing.assert_close(single[0], whole[row], rtol=0, atol=1e-11)


def test_observed_frames_of_one_way_networks_do_not_see_the_latent_ones_nor_time(networks):
    x = pixels(2, 3)
    other = x.clone()
    other[:, 2] = pixels(2, 1, seed=9)[:, 0]
    two_way, one_way = networks
    out = one_way(x, TIMES, WINDOW)[:, :2]
    assert torch.equal(one_way(other, TIMES, WINDOW)[:, :2], out)
    assert torch.equal(one_way(other, TIMES / 3, WINDOW)[:, :2], out)
    # They are at time 0 and attend to each other.
    only = stage_window(Stage((1, 2), ()), 2)
    torch.testing.assert_close(one_way(x[:, :2], 0 * TIMES, only), out, rtol=0, atol=1e-11)
    assert far(two_way(other, TIMES, WINDOW)[:, :2], two_way(x, TIMES, WINDOW)[:, :2])


def test_what_is_remembered_of_observed_frames_replaces_them(networks):
    one_way = networks[1]
    x = pixels(2, 3)
    memories = one_way.remember(x[:, :2], WINDOW.frames[:, :2])
    latent = Window(*(part[:, 2:] for part in WINDOW))
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
        network(x[:, i, None], TIMES, Window(*(part[:, i, None] for part in WINDOW)))
        for i in range(3)
    ]
    torch.testing.assert_close(network(x, TIMES, WINDOW), torch.cat(single, 1), rtol=0, atol=1e-11)


def test_every_weight_has_a_part_in_the_loss(networks):
    network = VideoUNet(CONFIG).double()
    network.load_state_dict(networks[0].state_dict())
    network(pixels(2, 3), TIMES, WINDOW)[:, 2].square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
