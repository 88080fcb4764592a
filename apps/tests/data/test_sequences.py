import hashlib
from importlib.resources import files

import numpy as np
import pytest
import torch

from probseq_apps.data.names import DataError
from probseq_apps.data.parts import number_classes
from probseq_apps.data.sequences import corrupt_sequences, is_frame, load_sequences
from probseq_apps.data.sets import load_data, unknown_classes, unknown_part, without_classes
from probseq_apps.data.settings import DataSettings

LENGTHS = np.tile([3, 1, 2], 10)


def ragged(seed=0):
    """30 sequences of three classes, two channels, one to three frames."""
    frames = np.random.default_rng(seed).normal(size=(LENGTHS.sum(), 2)).astype(np.float32)
    return np.split(frames, LENGTHS.cumsum()[:-1]), np.repeat(["b", "a", "c"], 10)


def written(folder, kind):
    """The sequences in one of the forms of a file."""
    sequences, labels = ragged()
    path = folder / ("own.csv" if kind == "table" else "own.npz")
    if kind == "table":
        rows = [
            f"s{n},{-t},{label},{','.join(map(repr, map(float, frame)))}"
            for n, (each, label) in enumerate(zip(sequences, labels, strict=True))
            for t, frame in [*enumerate(each[::-1])]
        ]
        path.write_text("\n".join(["id,time,label,x,y", *rows]))
    elif kind == "frames":
        np.savez(path, values=np.concatenate(sequences), lengths=LENGTHS, labels=labels)
    else:
        behind = np.nan if kind == "NaN" else 7.0
        values = np.full((30, 4, 2), behind, dtype=np.float32)
        for row, each in zip(values, sequences, strict=True):
            row[: len(each)] = each
        lengths = {} if kind == "NaN" else {"lengths": LENGTHS}
        np.savez(path, values=values, labels=labels, **lengths)
    return f"sequences:{path}"


@pytest.mark.parametrize("kind", ["table", "frames", "NaN", "padded"])
def test_every_form_of_a_file_holds_the_same_sequences(kind, tmp_path):
    data, (sequences, labels) = load_sequences(written(tmp_path, kind), "label"), ragged()
    assert data.class_names == ("a", "b", "c")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [18, 6, 6]
    rows = [
        (data.class_names[target], x[is_frame(x[None])[0]].numpy().tolist())
        for part in (data.train, data.validation, data.test)
        for x, target in zip(part.inputs, part.targets, strict=True)
    ]
    expected = zip(labels.tolist(), (each.tolist() for each in sequences), strict=True)
    assert sorted(rows) == sorted(expected)
    # Normalised by the frames of the training part, a channel of ones, and zeros behind the end.
    frames = torch.cat([x[is_frame(x[None])[0]] for x in data.train.inputs])
    for x, found in zip(data.test.inputs, data.prepared(data.test.inputs), strict=True):
        x = x[is_frame(x[None])[0]]
        plain = (x - frames.mean(0)) / frames.std(0, correction=0)
        torch.testing.assert_close(found[: len(x), :2], plain)
        assert found[:, 2].sum() == len(x)
        assert not found[len(x) :].any()


def test_damaged_sequences_are_refused_by_their_fault(tmp_path):
    path = tmp_path / "own.npz"
    good = {"values": np.ones((4, 3, 2)), "lengths": [3, 1, 2, 3], "labels": [0, 0, 1, 1]}
    for changes, fault in (
        ({"labels": [0, 1]}, "labels of shape"),
        ({"lengths": [3, 0, 2, 3]}, "from 0"),
        ({"lengths": [3, 1, 2, 4]}, "to 4"),
        ({"lengths": [3, 1.5, 2, 3]}, "lengths of shape"),
        ({"labels": [0, 0, 1, np.nan]}, "missing"),
        ({"labels": ["a", "a", "b", " "]}, "missing"),
        ({"values": np.ones(4)}, "values are"),
        ({"values": np.full((4, 3, 2), np.inf)}, "finite"),
        ({"test": [True] * 4}, "not of all"),
    ):
        np.savez(path, **{**good, **changes})
        with pytest.raises(DataError, match=fault):
            load_sequences(f"sequences:{path}", "label")
    table = tmp_path / "own.csv"
    faults = {"a,1,v,1": "one label", ",1,u,1": "missing", "a,1,NaN,1": "missing"}
    for row, fault in {**faults, "a,0,u,2": "one frame at a time, got two at 0"}.items():
        table.write_text(f"id,time,label,x\na,0,u,1\n{row}\n")
        with pytest.raises(DataError, match=f"line 3.*{fault}"):
            load_sequences(f"sequences:{table}", "label")


def test_speakers_are_the_published_utterances_and_two_are_unknown_to_each_seed():
    file = files("probseq_apps.data").joinpath("speakers.npz").read_bytes()
    digest = "201b938a89435fbfe586957d091e34fc9aa03401b7e574f1bbc8a1ca64ff18e3"
    assert hashlib.sha256(file).hexdigest() == digest
    data, reading = load_data("speakers"), DataSettings(num_unknown=2)
    assert data.train.targets.bincount().tolist() == [21] * 9
    assert data.validation.targets.bincount().tolist() == [9] * 9
    assert data.test.targets.bincount().tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    lengths = is_frame(torch.cat([data.train.inputs, data.test.inputs])).sum(1)
    assert (int(lengths.min()), int(lengths.max())) == (7, 29)
    pairs = [unknown_classes(data, reading, seed=seed) for seed in range(9)]
    assert np.bincount(np.ravel(pairs)).tolist() == [2] * 9
    assert len({*pairs[0], *pairs[1], *pairs[2]}) == 6
    left = without_classes(data, pairs[3])
    names = [name for name in data.class_names if data.class_names.index(name) not in pairs[3]]
    assert left.class_names == tuple(names)
    test = data.test
    for n, name in enumerate(names):
        same = test.inputs[test.targets == data.class_names.index(name)]
        torch.testing.assert_close(left.test.inputs[left.test.targets == n], same, equal_nan=True)
    assert len(unknown_part(test, pairs[3])) == len(test) - len(left.test)
    with pytest.raises(DataError, match=r"must name classes .* got '0'"):
        unknown_classes(data, DataSettings(unknown=("0",)), seed=0)


def test_equal_numbers_are_classes_in_the_same_order_in_every_process():
    names = tuple(f"1.{'0' * zeros}" for zeros in range(9))
    assert number_classes(["2", *names], "own")[0] == (*names, "2")


@pytest.mark.parametrize("severity", [1, 5])
def test_corruptions_of_sequences_do_what_they_say(severity):
    data = load_data("speakers")
    x, scale = data.test.inputs, data.statistics[1]
    count = is_frame(x).sum(1)

    def changed(name, seed=0):
        return corrupt_sequences(x, name, severity, scale=scale, seed=seed)

    for name in ("frame_noise", "channel_gain"):
        found = (changed(name) - x) / scale
        assert torch.equal(is_frame(found), is_frame(x))
        std = float(found[is_frame(x)].std())
        assert std == pytest.approx({1: 0.1, 5: 1.0}[severity], rel=0.05)
    gain = changed("channel_gain") - x
    torch.testing.assert_close(gain[:, :1].expand(-1, 7, -1), gain[:, :7], atol=1e-4, rtol=0)
    left = {1: 0.9, 5: 0.3}[severity] * count
    for name in ("dropped_frames", "truncation"):
        found = changed(name)
        assert (is_frame(found).sum(1) - left).abs().max() <= 0.5
        for before, after in zip(x, found, strict=True):
            after = after[is_frame(after[None])[0]]
            # Each frame that is left stood behind the one before it.
            at = (before[None] == after[:, None]).all(-1).float().argmax(1)
            assert torch.equal(before[at], after)
            assert (at.diff() > 0).all()
            assert name == "dropped_frames" or torch.equal(at, torch.arange(len(after)))
    assert not torch.equal(
        changed("frame_noise").nan_to_num(), changed("frame_noise", 1).nan_to_num()
    )
