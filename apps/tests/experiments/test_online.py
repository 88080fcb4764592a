import math

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from ohsvgp import AdamSteps, OnlineGP, RandomSubset
from ohsvgp.tasks import Task
from probseq_apps.cli import main
from probseq_apps.data.series import Series
from probseq_apps.data.tables import PointTable
from probseq_apps.experiment import Job, RunFolder
from probseq_apps.experiments.online import (
    Streams,
    build,
    estimate,
    learn_stream,
    naive_score,
    prior_of,
)
from probseq_apps.experiments.streams import TaskStream, cut_series, cut_table, load_stream
from probseq_apps.settings.online import (
    METHODS,
    ONLINE_RECIPES,
    GPSettings,
    OnlineSettings,
    StreamSettings,
)

pytestmark = pytest.mark.slow

ROWS = ["ohsvgp", "ovc", "osgpr", "exact"]
POINTS = ["--inputs", "a", "b", "--method", "ovc", "--num-tasks", "1"]
TINY = ["--num-tasks", "3", "--num-inducing", "6", "--learn-steps", "2", "--seeds", "0", "1"]


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """A slow wave on dates, with a gap."""
    rows = [f"2021-01-{day:02d},{math.sin(day / 4.0):.4f}" for day in range(1, 31)]
    rows += [f"2021-03-{day:02d},{math.cos(day / 4.0):.4f}" for day in range(1, 31)]
    path = tmp_path_factory.mktemp("data") / "own.csv"
    path.write_text("\n".join(["day,level", *rows[:20], "2021-01-31,", *rows[20:]]) + "\n")
    return path


def arguments(path, *more):
    columns = ["--time", "day", "--target", "level"]
    return ["online", "--data", f"csv:{path}", *columns, *TINY, "--method", *ROWS, *more]


@pytest.fixture(scope="module")
def finished(series, tmp_path_factory):
    """A finished comparison."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(arguments(series, "--run-dir", str(folder))) == 0
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """No plots: they take longer than the runs."""
    for name in ("report.online.metric_figures", "experiments.online.prediction_figures"):
        monkeypatch.setattr(f"probseq_apps.{name}", lambda *_, **__: {})


def test_the_report_holds_each_method_seed_and_task_of_one_split(finished, report_of):
    report, splits = report_of(finished), {}
    assert list(report["methods"]) == ROWS
    for name, method in report["methods"].items():
        for seed, found in method["seeds"].items():
            for metric in ("nlpd", "rmse"):
                known = [[cell is not None for cell in row] for row in found["matrix"][metric]]
                assert known == np.tri(3).astype(bool).tolist()
                assert len(found["over_tasks"][metric]) == 3
            with np.load(finished / "predictions" / f"{name}-seed{seed}.npz") as arrays:
                own = [arrays[part].tolist() for part in ("train_t", "test_t", "test_y")]
                assert splits.setdefault(seed, own) == own
                assert arrays["mean"].shape == arrays["sd"].shape == (3, len(arrays["t"]))
                assert ("inducing" in arrays) == (name in ("ovc", "osgpr"))
    assert splits["0"] != splits["1"]
    assert "1 rows without a value" in report["data"]["notes"][0]
    assert list((finished / "plots").iterdir())


def test_what_needs_no_model_is_the_value_before_or_that_of_the_nearest_point():
    x, y = torch.tensor([0.0, 2.0, 1.0, 5.0]), torch.tensor([1.0, 3.0, 2.0, 7.0])
    task = Task(x, y, torch.tensor([0.5, 2.0, 4.0, -1.0]), torch.zeros(4))
    # Before 2 is 1; before the first there is none, and the first stands in.
    assert naive_score([task]) == pytest.approx(math.sqrt((1 + 4 + 9 + 1) / 4))
    several = task._replace(y=torch.stack([y, y]), test_y=torch.zeros(2, 4))
    assert naive_score([several]) == pytest.approx(math.sqrt(15 / 4))
    points = Task(torch.eye(2), torch.tensor([0.0, 1.0]), torch.tensor([[0.9, 0.2]]), torch.ones(1))
    assert naive_score([points], "bernoulli") == 0.0


@pytest.mark.usefixtures("undrawn")
def test_a_run_goes_on_with_what_is_missing_and_gives_the_same_report(
    series, finished, tmp_path, report_of, monkeypatch, capsys
):
    folder, built = tmp_path / "run", []

    def record(method, stream, *rest):
        built.append((method, len(stream.tasks[0].y) <= 20 and len(stream.tasks) == 2))
        return build(method, stream, *rest)

    monkeypatch.setattr("probseq_apps.experiments.online.build", record)
    base = arguments(series, "--run-dir", str(folder))
    assert main(base) == 0
    # Each method is warmed up on a few points before its first seed.
    first = [(method, warm) for method in ROWS for warm in (True, False)]
    assert built == first + [(method, False) for method in ROWS]
    assert report_of(folder) == report_of(finished)
    built.clear()
    (folder / "results" / "ovc-seed1.json").unlink()
    predictions = folder / "predictions" / "ohsvgp-seed0.npz"
    whole = predictions.read_bytes()
    predictions.write_bytes(whole[: len(whole) // 2])
    assert main(["online", "--resume", "--run-dir", str(folder)]) == 1
    assert f"{predictions} is damaged" in capsys.readouterr().err
    predictions.unlink()
    assert main(["online", "--resume", "--run-dir", str(folder)]) == 1
    assert f"{predictions} is not there: delete" in capsys.readouterr().err
    (folder / "results" / "ohsvgp-seed0.json").unlink()
    assert main(["online", "--resume", "--run-dir", str(folder)]) == 0
    assert [name for name, warm in built if not warm] == ["ovc", "ohsvgp"]
    assert predictions.read_bytes() == whole
    assert report_of(folder) == report_of(finished)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--data", "csv:none.csv"], "none.csv"),
        (["--likelihood", "poisson", "--method", "ohsvgp"], "does not suit '"),
        (["--num-tasks", "200"], "no point for evaluation"),
        (["--data", "csv:own.csv"], "column 'time' (stamps, --time)"),
        (["--data", "csv:own.csv", "--time", "dya"], "did you mean 'day'?"),
        (["--data", "csv:own.csv", "--time", "day"], "own.csv, line 3: a time stamp must be"),
        (["--data", "csv:own.csv", *POINTS, "--time", "day"], "own.csv, line 3: a time stamp"),
        (["--data", "csv:own.csv", *POINTS, "--likelihood", "bernoulli"], "labels 0 and 1"),
        (["--download"], "download needs data_dir"),
        (["--download", "--data-dir", "new"], "'sp500' is not fetched"),
    ],
)
def test_failures_are_one_line_and_write_nothing(given, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("day,a,b,value\n1,1,2,0\ntwo,2,1,5\n")
    assert main(["online", *given]) == 1
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]


@pytest.mark.usefixtures("undrawn")
def test_quiet_first_days_of_a_file_do_not_decide_for_the_days_after(tmp_path, report_of, capsys):
    noise = np.random.default_rng(0).normal(size=120)
    values = np.where(np.arange(120) < 30, 0.01, 1.0) * noise
    path = tmp_path / "own.csv"
    rows = [f"{day},{value}" for day, value in enumerate(values)]
    path.write_text("\n".join(["time,value", *rows]))
    base = ["online", "--data", f"csv:{path}", "--seeds", "0", "--method", "cosine", "ohsvgp-rff"]
    base += ["--num-tasks", "4", "--num-inducing", "8", "--num-features", "20"]
    assert main([*base, "--run-dir", str(tmp_path / "run")]) == 0
    first = capsys.readouterr().out.partition("NLPD")[0]
    coverage = {
        name: found["seeds"]["0"]["over_tasks"]["coverage"][-1]
        for name, found in report_of(tmp_path / "run")["methods"].items()
    }
    # What cannot follow has the hyperparameters of the first days, and the first line says so.
    assert coverage["cosine"] > 0.85
    assert coverage["ohsvgp-rff"] < 0.6
    assert "cosines" not in first
    assert "random features)" in first
    assert first.index("Intervals of 95%") < first.index("random features)")


@pytest.mark.usefixtures("undrawn")
def test_series_side_by_side_are_learned_as_if_each_were_alone(tmp_path, report_of):
    values = [(math.sin(day / 4.0), 5.0 - 3.0 * math.cos(day / 5.0)) for day in range(60)]
    wide = ["day,level,other", *(f"{day},{a},{b}" for day, (a, b) in enumerate(values))]
    long = [f"{day},a,{a}\n{day},b,{b}" for day, (a, b) in enumerate(values)]
    path = tmp_path / "own.csv"
    base = ["online", "--data", f"csv:{path}", "--time", "day", "--hyperparameters", "fixed"]
    base += [*TINY, "--lengthscale", "4", "--method", "ohsvgp", "exact", "--seeds", "0"]

    def learn(*given):
        assert main([*base, "--target", *given, "--run-dir", str(tmp_path / given[0])]) == 0
        return report_of(tmp_path / given[0])["methods"]

    path.write_text("\n".join(wide))
    alone = [learn(name) for name in ("level", "other")]
    path.write_text("\n".join(["day,series,value", *long]))
    for method, found in learn("value", "--series", "series").items():
        runs = [one[method]["seeds"]["0"]["over_tasks"] for one in alone]
        over = found["seeds"]["0"]["over_tasks"]
        assert over["nlpd"] == pytest.approx(np.mean([one["nlpd"] for one in runs], 0))
        rmse = np.square([one["rmse"] for one in runs]).mean(0) ** 0.5
        assert over["rmse"] == pytest.approx(rmse)


@pytest.mark.usefixtures("undrawn")
def test_trends_and_seasons_reach_the_model_and_kernels_are_read_as_text(tmp_path, report_of):
    path, rows = tmp_path / "own.csv", ["time,value"]
    rows += [f"{t},{0.05 * t + math.sin(t * math.pi / 10):.6f}" for t in range(200)]
    path.write_text("\n".join(rows) + "\n")
    common = ["online", "--data", f"csv:{path}", "--num-tasks", "4", "--seeds", "0", "--quiet"]

    def error(name, *more):
        assert main([*common, *more, "--run-dir", str(tmp_path / name)]) == 0
        numbers = report_of(tmp_path / name)["methods"]["cosine"]["seeds"]["0"]
        assert 0 <= numbers["over_tasks"]["coverage"][-1] <= 1
        return numbers["over_tasks"]["rmse"][-1]

    few = ["--method", "cosine", "--num-inducing", "4"]
    assert error("mean", *few, "--trend", "--season", "20") < 0.01
    assert error("none", *few) > 0.1
    assert error("kernel", *few, "--kernel", "periodic(20)*rbf(1000) + 100*linear") < 0.1


def test_points_of_a_file_are_learned_in_the_order_of_their_inputs_or_stamps(tmp_path, report_of):
    x, path = np.random.default_rng(0).normal(size=(90, 2)), tmp_path / "points.csv"
    day = np.datetime64("2024-01-01") + np.argsort(np.argsort(-x[:, 1]))
    rows = [f"{a},{b},{a + b**2},{int(a > b)},{d}" for (a, b), d in zip(x, day, strict=True)]
    path.write_text("\n".join(["a,b,y,label,day", *rows]))
    base = ["online", "--data", f"csv:{path}", "--inputs", "a", "b", *TINY, "--seeds", "0"]
    base += ["--num-inducing", "20", "--method", "ohsvgp-k", "ovc"]

    def learn(*given):
        folder = tmp_path / given[1]
        assert main([*base, *given, "--run-dir", str(folder)]) == 0
        with np.load(folder / "predictions" / "ovc-seed0.npz") as arrays:
            return report_of(folder), arrays["train_x"]

    report, inputs = learn("--target", "y")
    assert (report["data"]["input"], sum(report["data"]["test"])) == ("a, b", 18)
    assert report["methods"]["ovc"]["seeds"]["0"]["over_tasks"]["rmse"][-1] < 0.5
    assert (np.diff(inputs[:, 0]) >= 0).all()
    labelled, inputs = learn("--target", "label", "--likelihood", "bernoulli", "--time", "day")
    assert labelled["methods"]["ovc"]["seeds"]["0"]["over_tasks"]["accuracy"][-1] > 0.8
    assert (np.diff(inputs[:, 1]) <= 0).all()


# -- Streams and models ---------------------------------------------------------------------------


def settings(num_tasks=3, likelihood="gaussian", **stream):
    return OnlineSettings(
        method=("ohsvgp",),
        stream=StreamSettings(num_tasks=num_tasks, **stream),
        model=GPSettings(likelihood=likelihood),
    )


def test_the_split_of_a_standard_set_is_that_of_scikit_learn_and_counts_stay():
    time = np.linspace(3.0, 8.0, 101)
    own = Series("own", time, np.arange(101.0), "t", "y")
    tasks = cut_series(own, settings(likelihood="poisson"), seed=3).tasks
    kept = np.sort(train_test_split(np.arange(101), test_size=20, random_state=3)[1])
    assert torch.cat([task.test_x for task in tasks]).tolist() == time[kept].tolist()
    assert torch.cat([task.test_y for task in tasks]).tolist() == kept.tolist()
    y = torch.cat([task.y for task in cut_series(own, settings(), seed=3).tasks])
    assert y.mean().item() == pytest.approx(0.0, abs=1e-12)


def test_points_are_sorted_by_the_first_input_or_by_their_distance_from_the_origin():
    x = np.random.default_rng(0).normal(size=(60, 3)) * [1.0, 10.0, 0.1] + 4.0
    table = PointTable("own", x, x[:, 0], np.arange(60) % 3 == 0, ("a", "b", "c"), "y")
    first, l2 = (cut_table(table, settings(order=order)) for order in ("first", "l2"))
    inputs, others = (torch.cat([task.x for task in found.tasks]) for found in (first, l2))
    for key in (inputs[:, 0], others.norm(dim=1)):
        assert (key.diff() >= 0.0).all()
    assert inputs.mean(0).tolist() == pytest.approx([0.0] * 3, abs=1e-12)
    assert inputs.std(0, correction=0).tolist() == pytest.approx([1.0] * 3)
    assert (first.dim, first.grid) == (3, None)


def test_seconds_since_1970_are_learned_as_well_as_small_numbers():
    own, found = ONLINE_RECIPES.load("own-series"), []
    for step, start in ((60.0, 1.7e9), (1.0, 0.0)):
        time, values = start + step * np.arange(80.0), np.sin(np.arange(80) / 5.0)
        stream = cut_series(Series("csv:own.csv", time, values, "t", "y"), own, seed=0)
        kernel, _ = estimate(stream, own.model, fourier=False, seed=0)
        found.append(kernel.lengthscale.item() / step)
    assert found[0] == pytest.approx(found[1], rel=0.02)


@pytest.mark.parametrize("data", ["toy", "two-moons"])
def test_every_method_learns_a_first_task_far_better_than_its_prior(data, tmp_path):
    kind, likelihood = ("points", "bernoulli") if data == "two-moons" else ("time", "gaussian")
    chosen = OnlineSettings(
        data=data,
        method=("ovc",),
        stream=StreamSettings(num_tasks=6),
        model=GPSettings(
            **{"num_inducing": 11, "likelihood": likelihood, "hyperparameters": "fixed"},
            **{"lengthscale": 0.3, "ovff_lengthscale": 0.5, "noise": 0.02, "learn_steps": 2},
            num_features=200,
        ),
    )
    stream = load_stream(chosen, None, seed=0)
    stream = TaskStream(stream.name, stream.tasks[:2], None, "", "", ())
    streams, at = Streams({0: stream}), RunFolder(tmp_path, "recipe")
    for name, method in METHODS.items():
        if method.inputs in (kind, "both") and (method.basis or data == "toy"):
            found = learn_stream(chosen, streams, Job(name, 0), at)
            # The standard deviation of targets is one; a coin has 0.69 nats.
            assert found["over_tasks"]["nlpd"][0] < (0.6 if data == "toy" else 0.4), name


def fixed(likelihood="gaussian", **model):
    """Settings of four tasks of the toy whose hyperparameters are known."""
    model |= {"hyperparameters": "fixed", "lengthscale": 0.3, "noise": 0.02, "num_inducing": 30}
    return OnlineSettings(
        data="toy",
        method=("ohsvgp",),
        stream=StreamSettings(num_tasks=4),
        model=GPSettings(likelihood=likelihood, **model),
    )


def test_what_comes_at_once_is_one_update_with_the_steps_of_all_tasks(tmp_path):
    own = fixed(learn_steps=3)
    stream = load_stream(own, None, seed=0)
    at = RunFolder(tmp_path, "toy")
    found = learn_stream(own, Streams({0: stream}), Job("osvgp-at-once", 0), at)
    kernel, likelihood = prior_of(own.model)
    learned = RandomSubset(30, learn=AdamSteps(steps=12, learning_rate=own.model.learn_rate))
    alone = OnlineGP(kernel, likelihood, learned, alpha=own.model.alpha, t0=stream.interval[0])
    alone.update(*(torch.cat([task[part] for task in stream.tasks]) for part in (0, 1)))
    for number, task in enumerate(stream.tasks):
        nlpd = -alone.log_prob(task.test_x, task.test_y).mean().item()
        column = [row[number] for row in found["matrix"]["nlpd"]]
        assert column == [None] * number + [pytest.approx(nlpd)] * (4 - number)
    assert [seconds > 0.0 for seconds in found["seconds"]] == [True, False, False, False]
