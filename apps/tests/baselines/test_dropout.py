import pytest
import torch
from torch import nn

from probseq_apps.baselines.dropout import active_dropout


def test_only_dropout_is_switched_on_and_only_inside():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2)).eval()
    with active_dropout(model):
        assert [module.training for module in model] == [False, True, False]
    assert not any(module.training for module in model.modules())


def test_dropout_is_switched_off_after_an_error():
    model = nn.Sequential(nn.Dropout(0.5)).eval()
    with pytest.raises(RuntimeError, match="stop"), active_dropout(model):
        raise RuntimeError("stop")
    torch.testing.assert_close(model(torch.ones(50)), torch.ones(50))
