import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pseudovideo.tokenizers.quantizer import VectorQuantizer


def _quantizer(size=7, code_dim=3, dim=5, *, ready=True, **settings):
    """A quantizer in float64, by default with a codebook as though it had trained."""
    torch.manual_seed(0)
    quantizer = VectorQuantizer(size, code_dim, dim, **settings).double().train()
    if ready:
        quantizer.counts.copy_(torch.rand(size) + 1)
        quantizer.initialised.fill_(True)
    return quantizer


def _inputs(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _projected(quantizer, z):
    return quantizer.project_in(z).detach().reshape(-1, quantizer.codebook.shape[1]).numpy()


def _nearest(points, codebook):
    return np.array([np.argmin([((x - e) ** 2).sum() for e in codebook]) for x in points])


def test_each_input_gets_its_nearest_code_projected_back():
    quantizer, z = _quantizer().eval(), _inputs(2, 3, 4, 5)
    out = quantizer(z)
    expected = _nearest(_projected(quantizer, z), quantizer.codebook.numpy()).reshape(2, 3, 4)
    np.testing.assert_array_equal(out.indices.numpy(), expected)
    codes = quantizer.codebook[torch.as_tensor(expected)]
    torch.testing.assert_close(out.quantized, quantizer.project_out(codes), rtol=0, atol=1e-12)
    assert torch.equal(quantizer.encode(z), out.indices)
    assert torch.equal(quantizer.lookup(out.indices), out.quantized)


def test_of_equally_near_codes_the_first_is_taken():
    # The mean of these codes is a number of float32, and distances from it are exact.
    quantizer = VectorQuantizer(4, 2, 2).eval()
    quantizer.codebook.copy_(torch.tensor([[5.0, 5.0], [1.0, 0.0], [-1.0, 0.0], [-5.0, -5.0]]))
    assert quantizer.encode(torch.tensor([[0.0, 2.0], [-0.1, 0.0]])).tolist() == [1, 2]


def test_gradients_are_those_of_the_straight_through_formula():
    quantizer, z = _quantizer(commitment=0.7, revive_below=0.0), _inputs(4, 6, 5)
    codebook, cotangent = quantizer.codebook.clone(), _inputs(4, 6, 5, seed=2)
    z.requires_grad_()
    out = quantizer(z)
    ((out.quantized * cotangent).sum() + out.loss).backward()
    # dL/dx = W_outᵀ a + 2 β (x − e) / size, and from there as in any linear layer.
    x, e = quantizer.project_in(z).detach(), codebook[out.indices]
    slope = cotangent @ quantizer.project_out.weight + 2 * 0.7 * (x - e) / x.numel()
    assert z.grad is not None
    torch.testing.assert_close(z.grad, slope @ quantizer.project_in.weight)
    entering = torch.einsum("...c,...d->cd", slope, z).detach()
    torch.testing.assert_close(quantizer.project_in.weight.grad, entering)
    leaving = torch.einsum("...d,...c->dc", cotangent, e)
    torch.testing.assert_close(quantizer.project_out.weight.grad, leaving)
    torch.testing.assert_close(out.loss, 0.7 * (x - e).square().mean())


def test_without_memory_a_batch_is_one_step_of_k_means():
    quantizer, z = _quantizer(decay=0.0, revive_below=0.0), _inputs(30, 5)
    before, points = quantizer.codebook.numpy().copy(), _projected(quantizer, z)
    before[0] = quantizer.codebook[0] = 100.0  # nobody's code stays where it is
    quantizer(z)
    nearest = _nearest(points, before)
    expected = [points[nearest == k].mean(0) if (nearest == k).any() else e
                for k, e in enumerate(before)]  # fmt: skip
    np.testing.assert_allclose(quantizer.codebook.numpy(), expected, atol=1e-12)
    assert 0 not in nearest


def test_codes_are_quotients_of_moving_averages_of_sums_and_numbers():
    quantizer = _quantizer(decay=0.6, revive_below=0.0)
    counts = quantizer.counts.numpy().copy()
    sums = quantizer.codebook.numpy() * counts[:, None]
    for batch in range(20):
        z = _inputs(9, 5, seed=batch)
        points = _projected(quantizer, z)
        nearest = _nearest(points, sums / counts[:, None])
        decay = min(0.6, (1 + batch) / (10 + batch))
        for k in range(7):
            counts[k] = decay * counts[k] + (1 - decay) * (nearest == k).sum()
            sums[k] = decay * sums[k] + (1 - decay) * points[nearest == k].sum(0)
        quantizer(z)
        np.testing.assert_allclose(quantizer.counts.numpy(), counts, atol=1e-12)
        np.testing.assert_allclose(quantizer.codebook.numpy(), sums / counts[:, None], atol=1e-9)


def test_usage_and_perplexity_are_those_of_the_batch():
    quantizer, z = _quantizer(), _inputs(11, 5)
    for mode in (True, False):
        quantizer.train(mode)
        out = quantizer(z)
        shares = np.bincount(out.indices.numpy(), minlength=7) / 11
        used = shares[shares > 0]
        assert out.usage.item() == pytest.approx(len(used) / 7)
        assert out.perplexity.item() == pytest.approx(np.exp(-(used * np.log(used)).sum()))
    assert quantizer(z[:1]).perplexity.item() == pytest.approx(1)


def test_nothing_is_learnt_in_eval_mode():
    quantizer, z = _quantizer(ready=False).eval(), _inputs(11, 5)
    before = copy.deepcopy(quantizer.state_dict())
    quantizer(z)
    quantizer.encode(z)
    for name, value in quantizer.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_first_batch_sets_the_codebook_by_k_means():
    quantizer = _quantizer(4, 2, 2, ready=False, decay=0.99, revive_below=0.0)
    centres = torch.tensor([[9.0, 9], [9, -9], [-9, 9], [-9, -9]], dtype=torch.float64)
    z = (centres[:, None] + 0.1 * _inputs(4, 25, 2)).flatten(0, 1)
    errors = [quantizer(z).loss.item() for _ in range(2)]
    assert bool(quantizer.initialised)
    # A random code is 1 away in each coordinate of its own cluster, and 18 of others.
    points, codebook = z.numpy(), quantizer.codebook.numpy()
    nearest = _nearest(points, codebook)
    for k in set(nearest):
        np.testing.assert_allclose(codebook[k], points[nearest == k].mean(0), atol=1e-6)
    np.testing.assert_array_equal(quantizer.counts.numpy(), np.bincount(nearest, minlength=4))
    assert errors[1] == pytest.approx(errors[0])


def test_as_many_codes_as_inputs_are_the_inputs():
    quantizer = _quantizer(8, 3, 3, ready=False, revive_below=0.0, decay=0.0)
    z = _inputs(8, 3)
    quantizer(z)
    order = quantizer.encode(z)
    assert sorted(order.tolist()) == list(range(8))
    torch.testing.assert_close(quantizer.codebook[order], z)


def test_a_stored_codebook_is_not_initialised_again():
    old = _quantizer(ready=False, decay=0.5)
    old(_inputs(30, 5))
    torch.manual_seed(9)
    new = VectorQuantizer(7, 3, 5, decay=0.5).double().train()
    new.load_state_dict(old.state_dict())
    for batch in range(3):
        z = _inputs(30, 5, seed=batch)
        for quantizer in (old, new):
            torch.manual_seed(batch)
            quantizer(z)
    assert all(
        torch.equal(value, new.state_dict()[name]) for name, value in old.state_dict().items()
    )


def test_a_fresh_state_that_is_loaded_into_a_used_quantizer_is_initialised():
    fresh, used = _quantizer(ready=False), _quantizer(ready=False)
    used(_inputs(30, 5))
    used.load_state_dict(fresh.state_dict())
    z = 50 + _inputs(30, 5)
    assert used(z).perplexity > 2
    assert bool(used.initialised)


def test_dead_codes_take_the_place_of_inputs_and_others_stay():
    quantizer = _quantizer(revive_below=0.1)
    quantizer.batches.fill_(10_000)
    quantizer.codebook[2:4] = 1000.0
    quantizer.counts[2], quantizer.counts[3] = 1e-3, 10.0
    frozen = copy.deepcopy(quantizer)
    frozen.revive_below = 0.0
    z = _inputs(30, 5)
    quantizer(z)
    frozen(z)
    distances = (quantizer.codebook[2] - torch.as_tensor(_projected(quantizer, z))).norm(dim=-1)
    assert distances.min() == 0
    assert torch.equal(quantizer.counts[2], 0.1 * frozen.counts.mean())
    others = [0, 1, 3, 4, 5, 6]
    assert torch.equal(quantizer.codebook[others], frozen.codebook[others])
    assert torch.equal(quantizer.counts[others], frozen.counts[others])


def test_a_codebook_that_an_encoder_has_left_behind_is_used_again_soon():
    quantizer = _quantizer(32, 3, 3, ready=False)
    quantizer(_inputs(64, 3))
    far = [quantizer(30 + _inputs(64, 3, seed=batch)) for batch in range(2, 22)]
    # The few codes on the side to which the inputs went take all of them at first.
    assert far[0].usage < 0.1
    assert far[-1].usage > 0.5


def test_half_precision_and_autocast_keep_the_codebook_in_float32():
    torch.manual_seed(0)
    quantizer = VectorQuantizer(7, 3, 5).train()
    z = torch.randn(30, 5)
    quantizer(z)
    exact = quantizer.eval()(z.bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        out = quantizer(z.bfloat16())
        assert torch.equal(quantizer.encode(z.bfloat16()), exact.indices)
        assert quantizer.lookup(out.indices).dtype == torch.float32
    assert (out.quantized.dtype, out.loss.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(out.quantized, exact.quantized.bfloat16())
    assert torch.equal(out.indices, exact.indices)
    with torch.autocast("cpu", torch.bfloat16):
        quantizer.train()(z.bfloat16())
    assert quantizer.codebook.dtype == torch.float32
    assert quantizer.half()(z.half()).quantized.dtype == torch.float16


def test_inputs_that_are_not_finite_leave_the_codebook_alone():
    clean, dirty = _quantizer(revive_below=0.0), _quantizer(revive_below=0.0)
    z = _inputs(30, 5)
    spoilt = torch.cat((z, torch.full((3, 5), torch.nan, dtype=z.dtype)))
    clean(z)
    assert dirty(spoilt).loss.isnan()
    torch.testing.assert_close(dirty.codebook, clean.codebook)
    torch.testing.assert_close(dirty.counts, clean.counts)
    dirty.revive_below = 0.99
    dirty(spoilt)
    assert dirty.codebook.isfinite().all()
    fresh = _quantizer(ready=False)
    fresh(spoilt)
    assert fresh.codebook.isfinite().all()


def test_codes_do_not_start_at_inputs_that_are_not_finite():
    """There are more codes than inputs, so that every input is drawn as a code."""
    quantizer = _quantizer(40, ready=False, revive_below=0.0)
    inputs = _inputs(30, 5)
    quantizer(torch.cat((inputs, torch.full((3, 5), torch.nan, dtype=torch.float64))))
    assert quantizer.codebook.isfinite().all()
    # The finite ones are all codes.
    differences = _projected(quantizer, inputs)[:, None] - quantizer.codebook.numpy()
    assert np.abs(differences).max(axis=-1).min(axis=-1).max() < 1e-12


def _train_one_of_two_ranks(rank, folder, initial, batches):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    torch.manual_seed(rank)
    given, fresh = _quantizer(revive_below=0.0), _quantizer(ready=False, revive_below=0.9)
    given.load_state_dict(initial)
    torch.manual_seed(rank)  # ranks have different generators
    outputs = []
    for batch in batches:
        mine = batch.split([20, 10])[rank]
        outputs.append([value.detach() for value in given(mine)])
        fresh(mine)
    given.eval()(batches[0][rank:])  # ranks may evaluate different numbers of batches
    torch.save((given.state_dict(), fresh.state_dict(), outputs), f"{folder}/{rank}.pt")
    torch.distributed.barrier()  # gloo of torch 2.6 waits forever where the other has gone before
    torch.distributed.destroy_process_group()


def test_two_ranks_have_the_codebook_of_the_whole_batch(tmp_path, processes):
    whole = _quantizer(revive_below=0.0)
    initial = copy.deepcopy(whole.state_dict())
    batches = [_inputs(30, 5, seed=seed) for seed in range(3)]
    started = [
        processes.Process(target=_train_one_of_two_ranks, args=(rank, tmp_path, initial, batches))
        for rank in range(2)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0]
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for number, batch in enumerate(batches):
        out = whole(batch)
        one, other = (outputs[number] for _, _, outputs in ranks)
        assert torch.equal(torch.cat((one[1], other[1])), out.indices)
        for statistic in (3, 4):
            assert one[statistic].item() == pytest.approx(getattr(out, out._fields[statistic]))
            assert torch.equal(one[statistic], other[statistic])
    for name, value in whole.state_dict().items():
        for given, _, _ in ranks:
            torch.testing.assert_close(given[name], value)
    # Initialised and revived alike, from inputs of the first.
    for name, value in ranks[0][1].items():
        assert torch.equal(value, ranks[1][1][name])
    inputs = torch.cat([whole.project_in(batch).detach() for batch in batches])
    revived = torch.cdist(ranks[0][1]["codebook"], inputs).min(dim=1)
    places = revived.indices[revived.values < 1e-12] % 30
    assert len(places)
    assert (places < 20).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codebook_size": 1}, "codebook_size must be at least 2, got 1"),
        ({"code_dim": 0}, "code_dim must be a whole number of at least 1, got 0"),
        ({"dim": 0}, "dim must be a whole number of at least 1, got 0"),
        ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
        ({"revive_below": -0.1}, r"revive_below must be in \[0, 1\), got -0.1"),
        ({"commitment": float("nan")}, "commitment must be finite and not negative, got nan"),
    ],
)
def test_bad_settings_are_refused(change, message):
    settings = {"codebook_size": 4, "code_dim": 2, "dim": 3} | change
    with pytest.raises(ValueError, match=message):
        VectorQuantizer(**settings)


def test_bad_inputs_are_refused():
    quantizer = VectorQuantizer(4, 2, 3)
    with pytest.raises(ValueError, match=r"z must have shape \(..., dim=3\), got \(5, 4\)"):
        quantizer(torch.zeros(5, 4))
    with pytest.raises(ValueError, match=r"got \(0, 3\)"):
        quantizer.encode(torch.zeros(0, 3))
    with pytest.raises(ValueError, match=r"indices must be from 0 to 3, got 0 to 4"):
        quantizer.lookup(torch.tensor([0, 4]))


def test_an_encoder_learns_through_the_codes():
    torch.manual_seed(0)
    encoder, quantizer = nn.Linear(2, 6), VectorQuantizer(64, 3, 6).train()
    decoder = nn.Linear(6, 2)
    layers = nn.ModuleList([encoder, quantizer, decoder])
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-2)
    errors = []
    for _ in range(150):
        x = torch.rand(128, 2) * 2 - 1
        out = quantizer(encoder(x))
        error = F.mse_loss(decoder(out.quantized), x)
        optimizer.zero_grad()
        (error + out.loss).backward()
        optimizer.step()
        errors.append(error.item())
    # 64 squares of side 1/4 leave an error of (1/4)²/12 = .0052.
    assert np.mean(errors[-10:]) < 0.01
    assert out.usage > 0.7
