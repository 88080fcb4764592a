import json
import math

import numpy as np
import pytest

from probseq_apps.cli import main, parse
from probseq_apps.data.series import Series
from probseq_apps.experiment import Job
from probseq_apps.experiments.online import Online, build, estimate, starting_lengthscales
from probseq_apps.experiments.streams import cut_series
from probseq_apps.folder import RunFolder
from probseq_apps.settings.online import ONLINE_RECIPES, OnlineSettings

METHODS = ["ohsvgp", "ovc", "osgpr", "exact"]
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
    columns = ["--time-column", "day", "--target-column", "level"]
    return ["online", "--data", f"csv:{path}", *columns, *TINY, "--method", *METHODS, *more]


@pytest.fixture(scope="module")
def finished(series, tmp_path_factory):
    """A finished comparison."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(arguments(series, "--run-dir", str(folder))) == 0
    return folder


def read_report(folder):
    return json.loads((folder / "report.json").read_text())


def without_seconds(report):
    for method in report["methods"].values():
        for run in method["seeds"].values():
            del run["seconds"]
    return report


def test_the_report_holds_each_method_seed_and_task(finished):
    report = read_report(finished)
    assert list(report["methods"]) == METHODS
    for method in report["methods"].values():
        assert list(method["seeds"]) == ["0", "1"]
        for run in method["seeds"].values():
            for metric in ("nlpd", "rmse"):
                matrix = run["matrix"][metric]
                assert [[cell is None for cell in row] for row in matrix] == [
                    [False, True, True],
                    [False, False, True],
                    [False, False, False],
                ]
                assert len(run["over_tasks"][metric]) == 3
            assert len(run["seconds"]) == len(run["lost_information"]) == 3
    assert "1 rows without a value" in report["data"]["notes"][0]
    assert (finished / "report.md").read_text().count("| ohsvgp |") == 3
    assert list((finished / "plots").iterdir())


def test_all_methods_of_a_seed_have_the_same_split(finished):
    splits = {}
    for method in METHODS:
        for seed in (0, 1):
            with np.load(finished / "predictions" / f"{method}-seed{seed}.npz") as arrays:
                splits[method, seed] = arrays["train_t"], arrays["test_t"], arrays["test_y"]
                assert arrays["mean"].shape == arrays["sd"].shape == (3, len(arrays["t"]))
                assert ("inducing" in arrays) == (method in ("ovc", "osgpr"))
    for (_, seed), arrays in splits.items():
        for own, other in zip(arrays, splits["ohsvgp", seed], strict=True):
            assert np.array_equal(own, other)
    assert not np.array_equal(splits["ovc", 0][1], splits["ovc", 1][1])


@pytest.fixture
def undrawn(monkeypatch):
    """No plots: they take longer than the runs."""
    for name in ("metric_figures", "prediction_figures"):
        monkeypatch.setattr(f"probseq_apps.experiments.online.{name}", lambda *_, **__: {})


@pytest.mark.usefixtures("undrawn")
def test_the_same_command_gives_the_same_report(series, finished, tmp_path):
    assert main(arguments(series, "--run-dir", str(tmp_path / "again"))) == 0
    assert without_seconds(read_report(tmp_path / "again")) == without_seconds(
        read_report(finished)
    )


@pytest.mark.usefixtures("undrawn")
def test_a_stopped_run_goes_on_with_what_is_missing(series, tmp_path, capsys):
    folder = tmp_path / "run"
    base = arguments(series, "--run-dir", str(folder), "--seeds", "0")
    assert main(base) == 0
    expected = read_report(folder)
    kept = (folder / "results" / "ovc-seed0.json").read_bytes()
    (folder / "results" / "exact-seed0.json").unlink()
    assert main(["online", "--resume", "--run-dir", str(folder)]) == 0
    assert (folder / "results" / "ovc-seed0.json").read_bytes() == kept
    assert without_seconds(read_report(folder)) == without_seconds(expected)
    assert main(base) == 1
    assert "already holds a run" in capsys.readouterr().err
    assert main([*base, "--overwrite"]) == 0


@pytest.mark.usefixtures("undrawn")
def test_each_method_that_will_run_is_warmed_up_on_a_few_points_first(
    series, tmp_path, monkeypatch
):
    built = []

    def record(method, stream, *rest):
        built.append((method, len(stream.tasks[0].y) <= 20 and len(stream.tasks) == 2))
        return build(method, stream, *rest)

    monkeypatch.setattr("probseq_apps.experiments.online.build", record)
    base = arguments(series, "--run-dir", str(tmp_path / "run"))
    assert main(base) == 0
    first = [(method, warm) for method in METHODS for warm in (True, False)]
    assert built == first + [(method, False) for method in METHODS]
    built.clear()
    (tmp_path / "run" / "results" / "ovc-seed1.json").unlink()
    assert main(["online", "--resume", "--run-dir", str(tmp_path / "run")]) == 0
    assert built == [("ovc", True), ("ovc", False)]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("num_tasks", [2, 3])
def test_two_toy_tasks_have_the_figure_of_the_toy(num_tasks, tmp_path):
    given = ["--recipe", "toy", "--num-tasks", str(num_tasks), "--num-inducing", "6"]
    assert main(["online", *given, "--run-dir", str(tmp_path / "run")]) == 0
    drawn = (tmp_path / "run" / "plots" / "toy.png").is_file()
    assert drawn == (num_tasks == 2)
    assert ("![toy](plots/toy.png)" in (tmp_path / "run" / "report.md").read_text()) == drawn


@pytest.mark.usefixtures("undrawn")
def test_a_standard_file_that_is_missing_is_fetched(tmp_path, monkeypatch):
    rows = [f"{1610.5 + year},0,{math.sin(year / 3.0):.4f}" for year in range(60)]
    head = "year,tsi_11yr_cycle,tsi_11yr_cycle_plus_background"

    def fetch(name, data_dir):
        (data_dir / "solar_irradiance").mkdir(parents=True)
        text = "\n".join([head, *rows])
        (data_dir / "solar_irradiance" / "solar_irradiance.csv").write_text(text)

    monkeypatch.setattr("probseq_apps.experiments.online.download_online", fetch)
    folders = ["--data-dir", str(tmp_path / "data"), "--run-dir", str(tmp_path / "run")]
    given = ["--data", "solar", "--download", *TINY, "--seeds", "0", "--method", "ohsvgp"]
    assert main(["online", *given, *folders]) == 0
    assert sum(read_report(tmp_path / "run")["data"]["train"]) == 48


def test_counts_that_are_none_are_refused_before_anything_is_written(series, tmp_path, capsys):
    more = ["--likelihood", "poisson", "--method", "ohsvgp", "--run-dir", str(tmp_path / "run")]
    assert main(arguments(series, *more)) == 1
    error = capsys.readouterr().err
    assert f"poisson does not suit 'level' of data set 'csv:{series}': y must hold counts" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--method", "ohsvpg"], "did you mean 'ohsvgp'"),
        (["--method", "ohsvgp-k"], "'ohsvgp-k' is for points"),
        (["--data", "two-moons", "--method", "ovff"], "'ovff' is for series"),
        (["--data", "covid", "--method", "exact"], "'exact' needs likelihood gaussian"),
        (["--method", "ovff", "--hyperparameters", "online"], "'ovff' cannot change"),
        (["--data", "sollar"], "did you mean 'solar'"),
        (["--recipe", "solar-51"], "did you mean 'solar-50'"),
        (["--num-tasks", "0"], "num_tasks"),
        (["--test-share", "1"], "test_share"),
        (["--lengthscale", "0"], "lengthscale"),
        (["--seeds", "1", "1"], "seeds"),
        (["--method", "osgpr", "ovc", "osvgp"], "osgpr and osvgp"),
    ],
)
def test_what_cannot_go_together_exits_2_and_is_named(given, named, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["online", *given])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--data", "solar"], "--data-dir"),
        (["--data", "csv:none.csv"], "none.csv"),
        (["--num-tasks", "200"], "no point for evaluation"),
        (["--resume", "--run-dir", "none"], "no experiment to resume"),
        (["--download"], "download needs data_dir"),
        (["--download", "--data-dir", "new"], "'sp500' is not fetched"),
    ],
)
def test_failures_are_one_line_and_write_nothing(given, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["online", *given]) == 1
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [KeyError("t"), ValueError("no such colour")])
def test_plots_that_fail_cost_neither_report_nor_table(
    wrong, series, tmp_path, monkeypatch, capsys
):
    def fail(*_, **__):
        raise wrong

    monkeypatch.setattr("probseq_apps.experiments.online.metric_figures", fail)
    folder = tmp_path / "run"
    more = ["--run-dir", str(folder), "--method", "ohsvgp", "--seeds", "0"]
    assert main(arguments(series, *more)) == 1
    shown = capsys.readouterr()
    assert f"cannot be drawn: {type(wrong).__name__}: {wrong}" in shown.err
    assert "NLPD ↓" in shown.out
    assert read_report(folder)["methods"]["ohsvgp"]["seeds"]["0"]["tasks"] == 3
    markdown = (folder / "report.md").read_text()
    assert markdown.count("| ohsvgp |") == 3
    assert "## Plots" not in markdown
    monkeypatch.setattr("probseq_apps.experiments.online.metric_figures", lambda *_, **__: {})
    assert main(["online", "--resume", "--run-dir", str(folder)]) == 0
    assert (folder / "report.md").read_text().startswith(f"{markdown}\n## Plots\n")


def test_huge_targets_are_refused_before_anything_is_written(tmp_path, capsys):
    path = tmp_path / "huge.csv"
    rows = [f"{t},{math.sin(t / 5.0) * 1e200}" for t in range(80)]
    path.write_text("\n".join(["time,value", *rows]))
    folder = tmp_path / "run"
    assert main(["online", "--data", f"csv:{path}", "--run-dir", str(folder)]) == 1
    error = capsys.readouterr().err
    assert "column 'value'" in error
    assert error.count("\n") == 1
    assert not folder.exists()


def learn(method, stream, settings, folder):
    """What a method measures with seed 0, and the arrays that it keeps."""
    found = Online(settings).run(Job(method, 0), {0: stream}, RunFolder(folder, "recipe"))
    with np.load(folder / "predictions" / f"{method}-seed0.npz") as arrays:
        return found, dict(arrays)


def test_what_fails_before_the_first_task_is_said_of_task_1(monkeypatch, tmp_path):
    def fail(*given, **named):
        raise ValueError("no such thing")

    monkeypatch.setattr("probseq_apps.experiments.online.build", fail)
    stream, settings = wave("csv:own.csv", 1.0, 0.0)
    with pytest.raises(RuntimeError, match="ohsvgp, seed 0, task 1: no such thing"):
        learn("ohsvgp", stream, settings, tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_damaged_predictions_are_named_and_deleted_ones_made_anew(series, tmp_path, capsys):
    folder = tmp_path / "run"
    more = ["--run-dir", str(folder), "--method", "ohsvgp", "--seeds", "0"]
    assert main(arguments(series, *more)) == 0
    file = folder / "predictions" / "ohsvgp-seed0.npz"
    whole, results = file.read_bytes(), (folder / "results" / "ohsvgp-seed0.json").read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], b"x" * 300):
        file.write_bytes(damaged)
        capsys.readouterr()
        assert main(["online", "--resume", "--run-dir", str(folder)]) == 1
        error = capsys.readouterr().err
        assert f"{file} is damaged" in error
        assert "make it anew with --resume" in error
        assert error.count("\n") == 1
    file.unlink()
    assert main(["online", "--resume", "--run-dir", str(folder)]) == 0
    with np.load(file) as arrays:
        assert arrays["mean"].shape[0] == 3
    assert (folder / "results" / "ohsvgp-seed0.json").read_bytes() == results


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("columns", ["level,other", "series"])
def test_series_side_by_side_are_learned_as_if_each_were_alone(columns, tmp_path):
    wide, long = ["day,level,other"], ["day,series,level"]
    for day in range(60):
        values = math.sin(day / 4.0), 5.0 - 3.0 * math.cos(day / 5.0)
        wide.append(f"{day},{values[0]},{values[1]}")
        long += [f"{day},{name},{value}" for name, value in zip("ab", values, strict=True)]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(long if columns == "series" else wide))
    own = ["--target-column", "level", "--series-column", "series"]
    given = own if columns == "series" else ["--target-column", columns]
    base = ["online", "--data", f"csv:{path}", "--time-column", "day", "--hyperparameters", "fixed"]
    base += [*TINY, "--lengthscale", "4", "--method", "ohsvgp", "exact", "--seeds", "0"]
    assert main([*base, *given, "--run-dir", str(tmp_path / "both")]) == 0
    both = read_report(tmp_path / "both")["methods"]
    alone = []
    for name in ("level", "other"):
        path.write_text("\n".join(wide))
        folder = tmp_path / name
        assert main([*base, "--target-column", name, "--run-dir", str(folder)]) == 0
        alone.append(read_report(folder)["methods"])
    for method, found in both.items():
        runs = [one[method]["seeds"]["0"]["over_tasks"] for one in alone]
        over = found["seeds"]["0"]["over_tasks"]
        nlpd = [sum(pair) / 2 for pair in zip(*(run["nlpd"] for run in runs), strict=True)]
        assert over["nlpd"] == pytest.approx(nlpd)
        rmse = [math.hypot(*pair) / 2**0.5 for pair in zip(*(r["rmse"] for r in runs), strict=True)]
        assert over["rmse"] == pytest.approx(rmse)


@pytest.mark.usefixtures("undrawn")
def test_points_of_a_file_are_learned_in_the_order_of_their_inputs(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2))
    rows = [f"{a},{b},{a + b**2}" for a, b in x]
    path = tmp_path / "points.csv"
    path.write_text("\n".join(["a,b,y", *rows]))
    base = [
        "online",
        "--data",
        f"csv:{path}",
        "--time-column",
        "a,b",
        "--target-column",
        "y",
        *TINY,
    ]
    more = ["--num-inducing", "20", "--method", "ohsvgp-k", "ovc", "--seeds", "0"]
    assert main([*base, *more, "--run-dir", str(tmp_path / "run")]) == 0
    report = read_report(tmp_path / "run")
    assert report["data"]["input"] == "a, b"
    assert sum(report["data"]["test"]) == 18
    assert report["methods"]["ovc"]["seeds"]["0"]["over_tasks"]["rmse"][-1] < 0.5
    with np.load(tmp_path / "run" / "predictions" / "ovc-seed0.npz") as arrays:
        assert (np.diff(arrays["train_x"][:, 0]) >= 0).all()
    with pytest.raises(SystemExit):
        main([*base, "--method", "ohsvgp"])


def wave(name, step, start):
    """A sine of 80 points, as one seed sees it."""
    settings = ONLINE_RECIPES.load("own-series")
    time = start + step * np.arange(80.0)
    own = Series(name, time, np.sin(np.arange(80) / 5.0), "t", "y")
    return cut_series(own, settings, seed=0), settings


def test_seconds_since_1970_are_learned_as_well_as_small_numbers(tmp_path):
    stream, settings = wave("csv:own.csv", 60.0, 1.7e9)
    found, expected = (
        estimate(own, settings.model, fourier=False, seed=0)[0].lengthscale.item()
        for own in (stream, wave("csv:own.csv", 1.0, 0.0)[0])
    )
    assert found / 60.0 == pytest.approx(expected, rel=0.02)
    results, _ = learn("ohsvgp", stream, settings, tmp_path)
    assert results["over_tasks"]["rmse"][-1] < 0.05


def test_lengthscales_of_own_files_start_from_shares_of_the_first_task():
    stream, _ = wave("csv:own.csv", 60.0, 1.7e9)
    span = float(stream.tasks[0].x.max() - stream.tasks[0].x.min())
    # A thirtieth of the span is less than the gap of a minute between points.
    assert starting_lengthscales(stream, 2.0) == (span / 3.0, 60.0, 2.0)
    assert starting_lengthscales(stream._replace(name="sp500"), 2.0) == (2.0,)


def test_settings_survive_json():
    settings = parse(["online", "--recipe", "covid-15", "--seeds", "7"]).settings
    assert settings.seeds == (7,)
    assert OnlineSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
