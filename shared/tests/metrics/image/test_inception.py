import hashlib

import pytest
import torch

from damage import Planted
from probseq.metrics.image import InceptionFeatures, distance_name, inception
from probseq.metrics.image.extractors import FrozenExtractor


def network_weights(tmp_path, monkeypatch):
    """A file with random weights of the right names and shapes."""
    module = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    generator = torch.Generator().manual_seed(0)

    def drawn(shape):
        return 0.05 * torch.randn(shape, generator=generator)

    with monkeypatch.context() as patch:
        # Its constructor wants weights: these are the ones that it starts from.
        patch.setattr(module, "load_state_dict_from_url", lambda *args, **options: {})
        patch.setattr(torch.nn.Module, "load_state_dict", lambda self, state: None)
        network = module.FeatureExtractorInceptionV3("random", ["2048"])
    state = {
        name: drawn(tensor.shape) if name.endswith(("conv.weight", "fc.weight")) else tensor
        for name, tensor in network.state_dict().items()
    }
    torch.save(state, tmp_path / "inception.pth")
    return tmp_path / "inception.pth", module


@pytest.mark.slow
def test_features_are_torch_fidelitys_and_only_the_known_hash_is_an_fid(tmp_path, monkeypatch):
    file, module = network_weights(tmp_path, monkeypatch)
    extractor = InceptionFeatures(file)
    theirs = module.FeatureExtractorInceptionV3(
        "same", ["2048", "logits_unbiased"], feature_extractor_weights_path=str(file)
    )
    theirs.eval()
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=generator).to(torch.uint8)
    found = extractor(images.float() / 127.5 - 1)
    features, logits = theirs(images)
    torch.testing.assert_close(found.features, features, rtol=0.0, atol=0.0)
    torch.testing.assert_close(found.probabilities, logits.softmax(dim=1), rtol=0.0, atol=0.0)
    grey = images[:, :1].float() / 127.5 - 1
    torch.testing.assert_close(
        extractor(grey).features, theirs(images[:, :1].repeat(1, 3, 1, 1))[0], rtol=0.0, atol=0.0
    )

    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert extractor.sha256 == digest
    assert distance_name(extractor) == f"FD(inception-{digest[:8]})"
    monkeypatch.setattr(inception, "INCEPTION_SHA256", digest)
    assert distance_name(extractor) == "FID"
    assert not any(p.requires_grad for p in extractor.parameters())


def test_other_files_are_refused_and_never_unpickled(tmp_path):
    pytest.importorskip("torch_fidelity")
    torch.save(Planted(tmp_path / "ran"), tmp_path / "evil.pth")
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / "other.pth")
    (tmp_path / "text.pth").write_text("no weights")
    for name in ("evil", "other", "text"):
        with pytest.raises(ValueError, match=rf"tensors of the Inception network.*{name}\.pth"):
            InceptionFeatures(tmp_path / f"{name}.pth")
    assert not (tmp_path / "ran").exists()


def test_values_a_little_outside_the_range_are_its_ends():
    """256 would be 0 as a byte."""
    levels = []

    def network(images):
        levels.append(images)
        return torch.zeros(len(images), 2048), torch.zeros(len(images), 3)

    extractor = InceptionFeatures.__new__(InceptionFeatures)
    FrozenExtractor.__init__(extractor, "inception", 2048)
    extractor.network = network
    values = torch.tensor([-1.009, -1.0, 0.0, 1.0, 1.009])
    extractor(values.expand(1, 3, 2, 5))
    assert levels[0][0, 0, 0].tolist() == [0, 0, 128, 255, 255]
