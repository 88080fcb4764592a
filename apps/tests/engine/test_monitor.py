import pytest
import torch

from probseq_apps.engine.log import LossMonitor, NonFiniteLossError
from probseq_apps.engine.trainer import LossParts


def parts(loss, **others):
    return LossParts(torch.tensor(loss), {k: torch.tensor(v) for k, v in others.items()})


def test_losses_are_looked_at_only_every_so_often():
    monitor = LossMonitor(every=3)
    looked = [monitor.add(i, *parts(float(i)), share=1.0, size=1) for i in range(1, 7)]
    assert looked == [False, False, True, False, False, True]
    assert monitor.latest == {"loss": 6.0}


def test_the_first_bad_step_is_named_though_it_is_looked_at_later():
    monitor = LossMonitor(every=4)
    monitor.add(1, *parts(1.0, kl=0.5), share=1.0, size=1)
    monitor.add(2, *parts(float("inf"), kl=float("inf")), share=1.0, size=1)
    monitor.add(3, *parts(float("nan"), kl=2.0), share=1.0, size=1)
    with pytest.raises(NonFiniteLossError, match="not finite at step 2: loss=inf, kl=inf"):
        monitor.flush()


def test_means_weigh_each_step_by_its_examples_and_start_anew():
    monitor = LossMonitor(every=2)
    for loss, size in ((1.0, 10), (4.0, 5), (7.0, 1)):
        monitor.add(1, *parts(loss), share=1.0, size=size)
    assert monitor.take_means() == {"loss": pytest.approx((10 + 20 + 7) / 16)}
    monitor.add(4, *parts(2.0), share=1.0, size=3)
    assert monitor.take_means() == {"loss": 2.0}


def test_the_state_goes_on_in_the_middle():
    whole, first, second = LossMonitor(every=1), LossMonitor(every=1), LossMonitor(every=5)
    for monitor, losses in ((whole, [1.0, 2.0, 4.0]), (first, [1.0, 2.0])):
        for loss in losses:
            monitor.add(1, *parts(loss), share=1.0, size=2)
    second.load_state_dict(first.state_dict())
    second.add(3, *parts(4.0), share=1.0, size=2)
    assert second.take_means() == whole.take_means()


def test_parts_that_change_their_names_are_refused():
    monitor = LossMonitor(every=1)
    monitor.add(1, *parts(1.0, kl=0.5), share=1.0, size=1)
    with pytest.raises(ValueError, match=r"same parts at each step, \['kl'\], got \['penalty'\]"):
        monitor.add(2, *parts(1.0, penalty=0.5), share=1.0, size=1)


def test_a_part_cannot_be_named_like_the_sum():
    named = LossParts(torch.tensor(1.0), {"loss": torch.tensor(1.0)})
    with pytest.raises(ValueError, match="must not name a part 'loss'"):
        LossMonitor(every=1).add(1, *named, share=1.0, size=1)
