import pytest
import torch

from damage import Planted
from probseq.metrics.image import LPIPS

pytest.importorskip("lpips")
models = pytest.importorskip("torchvision.models")
TRUNKS = {"alex": models.alexnet, "squeeze": models.squeezenet1_1}


@pytest.fixture
def make(tmp_path):
    """A metric whose trunk is at random."""

    def from_file(net="alex", seed=0):
        torch.manual_seed(seed)
        trunk = TRUNKS[net](weights=None).features.state_dict(prefix="features.")
        torch.save(trunk, tmp_path / "random.pth")
        return LPIPS(net, weights=tmp_path / "random.pth")

    return from_file


@pytest.fixture
def metric(make):
    return make()


def pictures(n=3, channels=3, size=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, channels, size, size, generator=generator) * 2 - 1


def by_hand(metric, x, y):
    """Zhang et al.'s eq. 1 with the network's own layers."""
    network = metric.network
    shift = torch.tensor([-0.030, -0.088, -0.188])[:, None, None]
    scale = torch.tensor([0.458, 0.448, 0.450])[:, None, None]
    layers = [network.net((z - shift) / scale) for z in (x, y)]
    total = torch.zeros(len(x))
    for a, b, head in zip(*layers, network.lins, strict=True):
        a, b = (f / f.square().sum(dim=1, keepdim=True).sqrt() for f in (a, b))
        weights = head.model[-1].weight[0]
        total += ((a - b).square() * weights).sum(dim=1).mean(dim=(1, 2))
    return total


def test_it_is_the_papers_distance_written_out(metric):
    x, y = pictures(seed=1), pictures(seed=2)
    torch.testing.assert_close(metric(x, y), by_hand(metric, x, y), rtol=1e-4, atol=1e-7)


def test_features_that_vanish_give_no_nan_to_the_gradient(metric):
    last = metric.network.net.slice5[0]
    last.weight.zero_()
    last.bias.fill_(-1.0)
    x, y = pictures(seed=1).requires_grad_(), pictures(seed=2)
    # The root of a sum of squares has no slope at zero; the rectifier before it hides that.
    metric(x, y).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert float(x.grad.abs().sum()) > 0.0


def test_grey_images_are_colour_ones_of_three_equal_channels(metric):
    x, y = pictures(channels=1, seed=5), pictures(channels=1, seed=6)
    torch.testing.assert_close(metric(x, y), metric(x.repeat(1, 3, 1, 1), y.repeat(1, 3, 1, 1)))


def test_nothing_of_it_learns_and_nothing_drops_out_in_training(metric):
    x, y = pictures(seed=7).requires_grad_(), pictures(seed=8)
    before = metric(x, y)
    parent = torch.nn.ModuleList([metric]).train()
    assert parent.training
    assert not any(module.training for module in metric.modules())
    torch.testing.assert_close(metric(x, y), before, rtol=0.0, atol=0.0)
    assert all(not parameter.requires_grad for parameter in metric.parameters())
    assert len(list(metric.parameters())) == 10 + 5  # trunk and heads
    before.sum().backward()
    assert float(x.grad.abs().sum()) > 0.0


def trunk_file(tmp_path):
    """A file as torchvision's, with a classifier that LPIPS does not need."""
    torch.manual_seed(1)
    state = models.squeezenet1_1(weights=None).state_dict()
    torch.save(state, tmp_path / "trunk.pth")
    return tmp_path / "trunk.pth", state


def test_the_trunks_weights_come_from_a_file(tmp_path, make):
    file, state = trunk_file(tmp_path)
    metric = LPIPS("squeeze", weights=file)
    trunk = metric.network.net.state_dict()
    assert len(trunk) == sum(name.startswith("features.") for name in state)
    for name, tensor in trunk.items():
        layer = name.partition(".")[2]
        torch.testing.assert_close(tensor, state[f"features.{layer}"], rtol=0.0, atol=0.0)
    x, y = pictures(seed=9), pictures(seed=10)
    assert not torch.allclose(metric(x, y), make("squeeze")(x, y))


def test_wrong_files_are_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"weights .*none\.pth is not there"):
        LPIPS("alex", weights=tmp_path / "none.pth")
    file, _ = trunk_file(tmp_path)
    with pytest.raises(ValueError, match=r"trunk\.pth.*(lacks features|others)"):
        LPIPS("alex", weights=file)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list\.pth holds list"):
        LPIPS("alex", weights=tmp_path / "list.pth")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(ValueError, match=r"text\.pth does not"):
        LPIPS("alex", weights=tmp_path / "text.pth")


def test_files_are_never_unpickled(tmp_path):
    torch.save({"features.0.weight": Planted(tmp_path / "ran")}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil\.pth"):
        LPIPS("alex", weights=tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("net", "least"), [("alex", 31), ("squeeze", 17)])
def test_images_too_small_for_the_trunk_are_refused(net, least, make):
    metric = make(net)
    x = pictures(size=least)
    assert torch.isfinite(metric(x, -x)).all()
    with pytest.raises(ValueError, match=f"at least {least} pixels.*got .{least - 1}"):
        metric(pictures(size=least - 1), pictures(size=least - 1))
    # The network itself has nothing left then.
    with pytest.raises(RuntimeError):
        metric.network(pictures(size=least - 1), pictures(size=least - 1))


def test_bad_images_are_refused(metric, plain_calls):
    x = pictures()
    with pytest.raises(ValueError, match=r"images must lie in -1\.\.1, got values from 0 to 255"):
        metric(torch.tensor([0.0, 255.0]).repeat(16).expand(3, 3, 32, 32), x)
    with pytest.raises(ValueError, match=r"references must lie in -1\.\.1"):
        metric(x, 1.5 * x / x.abs().max())
    with pytest.raises(ValueError, match="1 or 3 channels"):
        metric(x[:, :2], x[:, :2])
    with pytest.raises(ValueError, match="images must have the shape of references"):
        metric(x, x[:2])
    with pytest.raises(ValueError, match=r"net must be one of .* got 'resnet'"):
        LPIPS("resnet", weights="trunk.pth")
