import json
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.image import AxesImage
from scipy import stats

from probseq_apps.report.online_boundaries import boundary_figure
from probseq_apps.report.online_curves import over_tasks_figure, per_task_figure, runtime_figure
from probseq_apps.report.online_fits import final_figure, task_borders, tasks_figure, value_limits
from probseq_apps.report.online_matrices import forgetting, matrix_figure
from probseq_apps.report.online_plots import draw
from probseq_apps.report.online_results import Band, Predictions, band, load_results

K = 3
LABELS = ("Year", "Irradiance")


def numbers(seed, offset=0.0):
    matrix = [
        [offset + seed + 10.0 * i + j if i <= j else None for i in range(K)] for j in range(K)
    ]
    return {
        "tasks": K,
        "matrix": {"nlpd": matrix},
        "over_tasks": {"nlpd": [offset + seed + j for j in range(K)], "rmse": [0.1, 0.2, 0.3]},
        "seconds": [0.5, 0.25, 0.25],
        "lost_information": [0.0] * K,
    }


def series(inducing=True):
    t = np.linspace(0.0, 3.0, 31)
    train_t = np.arange(12) / 4
    arrays = {
        "t": t,
        "mean": np.stack([np.sin(t + k) for k in range(K)]),
        "sd": np.stack([np.full(31, 0.1 * (k + 1)) for k in range(K)]),
        "train_t": train_t,
        "train_y": np.sin(train_t),
        "train_task": np.arange(12) // 4,
        "test_t": np.array([0.1, 1.1, 2.1]),
        "test_y": np.array([0.5, 0.6, 0.7]),
        "test_task": np.arange(3),
    }
    places = {"inducing": np.array([[0.0, 0.5, np.nan], [0.0, 1.0, 2.0], [0.0, 1.5, 3.0]])}
    return Predictions(0, arrays | (places if inducing else {}))


def plane():
    a, b = np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 21))
    grid = np.stack([a.ravel(), b.ravel()], -1)
    x = np.array([[-0.5, 0.0], [0.5, 0.0], [-0.5, 0.5], [0.5, 0.5]])
    return Predictions(
        0,
        {
            "grid": grid,
            # Crosses one half where the first coordinate is 0.1 (k + 1).
            "probability": np.stack([0.5 + 0.4 * (grid[:, 0] - 0.1 * (k + 1)) for k in range(2)]),
            "train_x": x,
            "train_y": np.array([0, 1, 0, 1]),
            "train_task": np.array([0, 0, 1, 1]),
        },
    )


@pytest.fixture
def write(tmp_path):
    def write(methods, predictions=None, likelihood="poisson"):
        settings = {"model": {"likelihood": likelihood}}
        report = {"experiment": "online", "settings": settings, "methods": methods}
        report["data"] = dict(zip(("input", "target"), LABELS, strict=True))
        (tmp_path / "report.json").write_text(json.dumps(report))
        (tmp_path / "predictions").mkdir(exist_ok=True)
        for name, one in (predictions or {}).items():
            np.savez(tmp_path / "predictions" / f"{name}.npz", **one.arrays)
        return tmp_path

    return write


def of_seeds(*seeds):
    return {"seeds": {str(seed): numbers(seed) for seed in seeds}}


def named(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return np.column_stack(line.get_data())


def test_everything_that_a_run_kept_is_drawn_and_what_is_missing_is_left_out(write):
    exact = {
        "seeds": {"0": {"seconds": [], "matrix": {}, "over_tasks": {"nlpd": [0.1, None, 1.0]}}}
    }
    kept = {"ohsvgp-seed0": series(inducing=False), "ohsvgp-rff-seed1": series()}
    methods = {"ohsvgp": of_seeds(0, 1), "ohsvgp-rff": of_seeds(1), "exact": exact}
    paths = draw(write(methods, kept))
    assert [path.stem for path in paths] == [
        *("over-tasks", "per-task-nlpd", "matrix-nlpd", "runtime"),
        *("fits", "fits-ohsvgp", "fits-ohsvgp-rff"),
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_run_on_the_plane_has_boundaries_and_one_of_many_inputs_no_curves(write):
    many = Predictions(0, {"train_x": np.zeros((4, 5)), "inducing": np.zeros((K, 2, 5))})
    folder = write({"ovc": of_seeds(0), "osvgp": of_seeds(0)}, {"ovc-seed0": many})
    assert "fits" not in [path.stem for path in draw(folder)]
    folder = write({"osvgp": of_seeds(0)}, {"osvgp-seed0": plane()})
    assert draw(folder)[-1].stem == "boundaries"


def test_values_on_a_plane_are_no_curve_and_probabilities_over_time_no_plane(write):
    values = plane().arrays | {"mean": np.zeros((2, 441)), "sd": np.ones((2, 441))}
    del values["probability"]
    over_time = series().arrays | {"probability": np.full((K, 31), 0.5)}
    del over_time["mean"], over_time["sd"]
    kept = {"osvgp-seed0": Predictions(0, values), "ovc-seed0": Predictions(0, over_time)}
    folder = write({"osvgp": of_seeds(0), "ovc": of_seeds(0)}, kept)
    assert [path.stem for path in draw(folder)][-1] == "runtime"


@pytest.mark.parametrize(
    ("likelihood", "unit"),
    [("gaussian", " (standardised)"), ("student-t", " (standardised)"), ("poisson", "")],
)
def test_axes_say_where_values_are_in_standard_deviations(write, likelihood, unit):
    results = load_results(write({"ohsvgp": of_seeds(0)}, likelihood=likelihood))
    assert results.labels == (LABELS[0], LABELS[1] + unit)
    chosen = {"standardised": results.standardised}
    over = {name: results.over_tasks(name) for name in ("nlpd", "rmse")}
    nlpd, rmse = over_tasks_figure(over, ["ohsvgp"], **chosen).axes
    assert nlpd.get_ylabel() == "NLPD (nats)\nover the learned tasks"
    assert rmse.get_ylabel() == f"RMSE{unit}\nover the learned tasks"
    matrices = results.matrices("nlpd")
    one = per_task_figure("rmse", matrices, ["ohsvgp"], **chosen)
    assert one.get_supylabel() == f"RMSE{unit}"
    assert matrix_figure("rmse", matrices, **chosen).axes[-1].get_ylabel() == f"RMSE{unit}"


def test_a_foreign_report_is_refused(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps({"methods": {"mle": {"metrics": {}}}}))
    with pytest.raises(ValueError, match="not a report of `probseq online`"):
        draw(tmp_path)


def test_lines_are_means_over_the_seeds_with_student_bands_of_three_and_more(write):
    results = load_results(write({"ohsvgp": of_seeds(0, 1, 5), "grid": of_seeds(0, 1)}))
    found = results.over_tasks("nlpd")
    half = stats.t.ppf(0.975, 2) * np.std([0, 1, 5], ddof=1) / np.sqrt(3)
    assert found["ohsvgp"].half == pytest.approx([half] * K)
    figure = over_tasks_figure({"nlpd": found, "rmse": results.over_tasks("rmse")}, list(found))
    nlpd, rmse = figure.axes
    assert named(nlpd, "ohsvgp") == pytest.approx(np.array([[1, 2], [2, 3], [3, 4]]))
    assert named(nlpd, "grid")[:, 1] == pytest.approx([0.5, 1.5, 2.5])
    assert len(nlpd.collections) == 1
    edges = nlpd.collections[0].get_paths()[0].vertices
    assert edges[:, 1].max() == pytest.approx(4 + half)
    assert named(rmse, "grid")[:, 1] == pytest.approx([0.1, 0.2, 0.3])


def test_a_task_s_panel_begins_when_it_is_learned(write):
    results = load_results(write({"ohsvgp": of_seeds(0, 2)}))
    figure = per_task_figure("nlpd", results.matrices("nlpd"), ["ohsvgp"])
    assert [axes.get_title() for axes in figure.axes] == ["Task 1", "Task 2", "Task 3"]
    for task, axes in enumerate(figure.axes):
        expected = [[j + 1, 1 + 10 * task + j] for j in range(task, K)]
        assert named(axes, "ohsvgp") == pytest.approx(np.array(expected))


def test_a_method_that_explodes_is_cut_off_and_named():
    calm = band([np.array([0.1, 0.2, 0.3])])
    wild = band([np.array([0.1, 5.0, 1e6])])
    methods = {"ohsvgp": calm, "grid": calm, "ovc": calm, "osgpr": wild}
    (axes,) = over_tasks_figure({"rmse": methods}, list(methods)).axes
    low, high = axes.get_ylim()
    assert -0.1 < low < 0.1
    assert 0.3 < high < 1.0
    assert "osgpr up to 1e+06" in axes.get_title(loc="left")
    (quiet,) = over_tasks_figure({"rmse": {"ohsvgp": calm}}, ["ohsvgp"]).axes
    assert quiet.get_title(loc="left") == ""


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_titles_are_as_wide_as_their_figures_at_most(tasks):
    curve = np.linspace(0.1, 0.2, tasks)
    methods = {"ohsvgp": Band(np.tile(curve, (tasks, 1)), np.full((tasks, tasks), np.nan))}
    wild = {f"method-{i}": methods["ohsvgp"] for i in range(4)}
    wild["osgpr"] = Band(1e6 * methods["ohsvgp"].mean, methods["ohsvgp"].half)
    over = {"rmse": {name: Band(found.mean[0], found.half[0]) for name, found in wild.items()}}
    for figure in (
        per_task_figure("rmse", methods, list(methods)),
        per_task_figure("rmse", wild, list(wild)),
        matrix_figure("rmse", {"ohsvgp": methods["ohsvgp"], "osgpr": wild["osgpr"]}),
        over_tasks_figure(over, list(wild)),
    ):
        figure.canvas.draw()
        extent = figure._suptitle.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= figure.bbox.width


def test_ticks_of_running_times_that_lie_close_do_not_overlap():
    figure = runtime_figure({"ohsvgp": band([0.9]), "exact": band([0.3])})
    figure.canvas.draw()
    (axes,) = figure.axes
    ticks = [*axes.get_xticklabels(), *axes.get_xticklabels(minor=True)]
    low, high = axes.get_xlim()
    shown = [tick for tick in ticks if tick.get_text() and low <= tick.get_position()[0] <= high]
    extents = sorted((box.x0, box.x1) for box in (tick.get_window_extent() for tick in shown))
    assert extents
    assert all(end < start for (_, end), (start, _) in pairwise(extents))


def test_matrices_print_their_numbers_in_colours_of_one_scale(write):
    results = load_results(write({"ohsvgp": of_seeds(0, 1), "grid": of_seeds(3)}))
    figure = matrix_figure("nlpd", results.matrices("nlpd"))
    panels = [axes for axes in figure.axes if axes.get_images() and axes.texts]
    assert [axes.get_title().splitlines()[0] for axes in panels] == ["ohsvgp", "grid"]
    for axes, mean in zip(panels, (0.5, 3.0), strict=True):
        shown = {text.get_position(): text.get_text() for text in axes.texts}
        assert shown == {(i, j): f"{mean + 10 * i + j:.1f}" for j in range(K) for i in range(j + 1)}
    first, second = (
        image for axes in panels for image in axes.get_children() if isinstance(image, AxesImage)
    )
    assert first.norm is second.norm


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        ("accuracy", [0.9968, 1.0, 1.0], (0.98, 1.0)),
        ("accuracy", [0.5, 0.75, 1.0], (0.5, 1.0)),
        ("rmse", [0.127, 0.128, 0.129], (0.127, 0.147)),
        ("nlpd", [4.0, 4.0, 4.0], (4.0, 4.4)),
        ("nlpd", [-4.0, -4.0, -4.0], (-4.0, -3.6)),
        ("nlpd", [1.0, 2.0, 3.0], (1.0, 3.0)),
    ],
)
def test_numbers_that_print_alike_have_like_colours(metric, values, expected):
    first, second, third = values
    matrix = np.array([[first, np.nan], [second, third]])
    figure = matrix_figure(metric, {"ovc": Band(matrix, matrix)})
    assert figure.axes[0].get_images()[0].get_clim() == pytest.approx(expected)
    assert "colours end at" not in figure.get_suptitle()
    # What explodes has no say.
    if metric != "accuracy":
        wild = np.where(np.tri(3) > 0, first, np.nan)
        wild[2, 2] = 1e6
        figure = matrix_figure(metric, {"ovc": Band(matrix, matrix), "osvgp": Band(wild, wild)})
        assert figure.axes[0].get_images()[0].get_clim() == pytest.approx(expected, rel=0.01)
        assert "colours end at" in figure.get_suptitle()


def test_an_axis_of_shares_ends_at_one_and_shows_what_lies_there_whole():
    perfect = {"ohsvgp": band([np.array([0.999, 1.0, 1.0])] * 3)}
    (axes,) = over_tasks_figure({"accuracy": perfect}, ["ohsvgp"]).axes
    assert axes.get_ylim()[1] == 1.0
    assert not axes.lines[0].get_clip_on()
    (axes,) = over_tasks_figure({"nlpd": perfect}, ["ohsvgp"]).axes
    assert axes.get_ylim()[1] > 1.0
    matrix = Band(np.array([[1.0, np.nan], [0.9, 1.0]]), np.full((2, 2), 0.05))
    for axes in per_task_figure("accuracy", {"ovc": matrix}, ["ovc"]).axes:
        assert axes.get_ylim()[1] == 1.0


@pytest.mark.parametrize(
    ("seeds", "words", "bands"),
    [
        ((0,), "one seed", ""),
        ((0, 1), "mean over 2 seeds", " (too few for bands)"),
        ((0, 1, 5), "mean over 3 seeds", " with 95% bands"),
    ],
)
def test_titles_say_of_how_many_seeds_numbers_are(write, seeds, words, bands):
    results = load_results(write({"ohsvgp": of_seeds(*seeds)}))
    matrices = results.matrices("nlpd")
    title = over_tasks_figure({"nlpd": results.over_tasks("nlpd")}, ["ohsvgp"]).get_suptitle()
    assert title.replace("\n", " ").endswith(f", {words}{bands}")
    title = per_task_figure("nlpd", matrices, ["ohsvgp"]).get_suptitle()
    assert title.replace("\n", " ").endswith(f", {words}{bands}")
    figure = matrix_figure("nlpd", matrices)
    assert figure.get_suptitle().replace("\n", " ").endswith(f", {words}")
    # Reports pool the points of all tasks: theirs is another number.
    assert "(mean over tasks)" in figure.axes[0].get_title()


def test_forgetting_is_positive_where_earlier_tasks_have_become_worse():
    matrix = np.array([[0.1, np.nan, np.nan], [0.2, 0.3, np.nan], [0.5, 0.4, 9.0]])
    assert forgetting("nlpd", matrix) == pytest.approx((0.4 + 0.1) / 2)
    assert forgetting("accuracy", matrix) == pytest.approx(-(0.4 + 0.1) / 2)
    figure = matrix_figure("nlpd", {"ohsvgp": Band(matrix, matrix)})
    assert "forgotten +0.25" in figure.axes[0].get_title()


def test_each_task_s_panel_has_its_prediction_its_points_and_its_inducing_locations():
    one = series()
    figure = tasks_figure("osgpr", one, LABELS)
    assert len(figure.axes) == K
    for task, axes in enumerate(figure.axes):
        curves = [line for line in axes.lines if len(line.get_xdata()) == len(one.arrays["t"])]
        assert curves[0].get_ydata() == pytest.approx(one.arrays["mean"][task])
        edges = axes.collections[0].get_paths()[0].vertices
        assert edges[:, 1].max() == pytest.approx(
            (np.sin(one.arrays["t"] + task) + 0.2 * (task + 1)).max()
        )
        latest = named(axes, "training points, latest task")
        assert latest[:, 0] == pytest.approx(np.arange(4 * task, 4 * task + 4) / 4)
        assert named(axes, "test points of the learned tasks")[:, 1] == pytest.approx(
            [0.5, 0.6, 0.7][: task + 1]
        )
    # What is not there yet is NaN.
    assert named(figure.axes[0], "inducing locations")[:, 0] == pytest.approx([0.0, 0.5])
    assert named(figure.axes[2], "inducing locations")[:, 0] == pytest.approx([0.0, 1.5, 3.0])
    assert figure.axes[-1].get_xlabel() == "Year"


def test_the_last_predictions_of_all_methods_stand_together():
    figure = final_figure({"grid": series(), "ohsvgp": series(inducing=False)}, LABELS)
    assert [axes.get_title() for axes in figure.axes] == ["grid", "ohsvgp"]
    assert "inducing locations" not in [line.get_label() for line in figure.axes[1].lines]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == len(set(labels)) == 5


def test_borders_lie_between_tasks_that_follow_each_other():
    one = series()
    assert task_borders(one) == pytest.approx([0.875, 1.875])
    mixed = Predictions(0, {**one.arrays, "train_task": np.arange(12) % 3})
    assert task_borders(mixed) == []


def test_the_axis_follows_the_data_where_a_band_explodes():
    one = series()
    wild = Predictions(0, {**one.arrays, "sd": 1e3 * one.arrays["sd"]})
    low, high = value_limits([wild])
    assert -1.5 < low < -0.5
    assert 1.2 < high < 2.0
    title = tasks_figure("osgpr", wild, LABELS).get_suptitle().replace("\n", " ")
    edges = [(wild.arrays["mean"] + sign * 2 * wild.arrays["sd"]) for sign in (-1, 1)]
    ends = f"down to {edges[0].min():.3g} and up to {edges[1].max():.3g}"
    assert title.endswith(f"; bands go on beyond the axis, {ends}")
    calm = Predictions(0, {**one.arrays, "mean": np.full((K, 31), 0.5)})
    assert tasks_figure("osgpr", calm, LABELS).get_suptitle().endswith("after each task")


def test_counts_have_neither_an_axis_nor_a_band_below_zero():
    one = series()
    counted = {"train_y": np.arange(12), "test_y": np.arange(3), "sd": 30 * one.arrays["sd"]}
    counts = Predictions(0, {**one.arrays, **counted})
    low, high = value_limits([counts])
    assert low == 0.0
    assert 11 < high < 20
    figure = tasks_figure("ovc", counts, LABELS)
    for task, axes in enumerate(figure.axes):
        edges = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert edges.min() == 0.0
        upper = np.sin(one.arrays["t"] + task) + 6.0 * (task + 1)
        assert edges.max() == pytest.approx(upper.max())
        # Below are points, of which many are zero.
        assert (named(axes, "inducing locations")[:, 1] > 0.9).all()
    assert "up to 18.9" in figure.get_suptitle()
    assert "down" not in figure.get_suptitle()
    # Values below zero are no counts, even if all are whole.
    assert value_limits([Predictions(0, {**counts.arrays, "test_y": np.arange(3) - 1})])[0] < -1


def test_boundaries_lie_where_the_probability_is_one_half():
    figure = boundary_figure({"osvgp": plane(), "ohsvgp-k": plane()})
    panels = [axes for axes in figure.axes if axes.collections and axes.lines]
    assert len(panels) == 4
    assert [axes.get_ylabel() for axes in panels] == ["osvgp", "", "ohsvgp-k", ""]
    for axes, place in zip(panels, (0.1, 0.2, 0.1, 0.2), strict=True):
        boundary = axes.collections[-1].get_paths()[0].vertices
        assert boundary[:, 0] == pytest.approx(np.full(len(boundary), place), abs=1e-6)
        assert len(named(axes, "class 1, latest task")) == 1
    assert len(named(panels[1], "class 0, earlier tasks")) == 1
