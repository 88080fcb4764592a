"""Curves of several arms, and the comparison at a glance."""

import json

import pytest
from matplotlib.figure import Figure

from probseq_apps.report.curves import save_training_curves
from probseq_apps.report.generate_plots import save_summary


@pytest.fixture
def figures(monkeypatch):
    """All figures that are saved, by the file's name."""
    saved = {}
    save = Figure.savefig

    def keep(figure, file, **arguments):
        saved[file.name] = figure
        save(figure, file, **arguments)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def write_log(folder, values, *, codebook=True, scored=True):
    folder.mkdir(parents=True)
    rows = []
    for epoch, value in enumerate(values, start=1):
        parts = {"usage": 0.1 * epoch, "perplexity": 10.0 * epoch, "psnr": 9.0 + epoch}
        row = {"step": 7 * epoch, "epoch": epoch, "loss": value}
        row["parts"] = parts if codebook else {}
        # Not every epoch is validated.
        rows.append(row | {"score": 20.0 + epoch if scored and epoch % 2 == 0 else None})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    # A crash may have cut the last line.
    (folder / "metrics.jsonl").write_text(lines + '{"step": 99')
    return folder


def check_room(figure):
    """Nothing overlaps, nothing is cut off."""
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]
            low, high = sorted(axis.get_view_interval())
            shown = [
                t.get_window_extent()
                for t in ticks
                if t.get_text() and low <= t.get_position()[axis is axes.yaxis] <= high
            ]
            for place, box in enumerate(shown):
                assert not any(box.overlaps(other) for other in shown[place + 1 :])


def test_curves_are_the_logged_values(tmp_path, figures):
    runs = {
        "1-frame": write_log(tmp_path / "a", [0.5, 0.25, 0.02]),
        "8-frame": [write_log(tmp_path / f"b{seed}", [0.4, 0.3 + seed]) for seed in range(2)],
    }
    files = save_training_curves(runs, tmp_path / "plots")
    assert [file.name for file in files] == ["tokenizer-loss.png", "tokenizer-codebook.png"]
    assert all(file.stat().st_size > 1000 for file in files)
    loss, psnr, score = figures["tokenizer-loss.png"].axes
    assert psnr.get_lines()[1].get_ydata().tolist() == [10, 11]
    assert [line.get_ydata().tolist() for line in loss.get_lines()] == [
        [0.5, 0.25, 0.02],
        [0.4, 0.3],
        [0.4, 1.3],
    ]
    assert loss.get_lines()[0].get_xdata().tolist() == [7, 14, 21]
    assert loss.get_yscale() == "log"
    assert [line.get_ydata().tolist() for line in score.get_lines()] == [[22.0]] * 3
    colours = [line.get_color() for line in loss.get_lines()]
    assert colours[1] == colours[2] != colours[0]
    usage, perplexity = figures["tokenizer-codebook.png"].axes
    assert usage.get_lines()[0].get_ydata().tolist() == pytest.approx([10, 20, 30])
    assert (usage.get_ylabel(), psnr.get_ylabel()) == ("Usage (%)", "PSNR (dB)")
    assert perplexity.get_lines()[1].get_ydata().tolist() == [10.0, 20.0]
    texts = [text.get_text() for text in figures["tokenizer-loss.png"].legends[0].get_texts()]
    assert texts == ["1-frame", "8-frame"]


def test_arms_have_colours_and_stems_line_styles(tmp_path, figures):
    arms, stems = ("1-frame", "8-frame"), ("plain", "layernorm")
    runs = {
        f"{arm}, {stem}": write_log(tmp_path / arm / stem, [0.5, 0.2])
        for stem in stems
        for arm in arms
    }
    save_training_curves(runs, tmp_path)
    lines = figures["tokenizer-loss.png"].axes[0].get_lines()
    styles = [(line.get_color(), line.get_linestyle()) for line in lines]
    assert [dash for _, dash in styles] == ["-", "-", "--", "--"]
    assert styles[0][0] == styles[2][0] != styles[1][0] == styles[3][0]
    texts = [text.get_text() for text in figures["tokenizer-loss.png"].legends[0].get_texts()]
    assert texts == ["1-frame", "8-frame", "stem plain", "stem layernorm"]


def test_a_prior_has_no_codebook_and_a_loss_below_zero_no_logarithm(tmp_path, figures):
    runs = {"8-frame": write_log(tmp_path / "a", [0.5, -0.1], codebook=False)}
    files = save_training_curves(runs, tmp_path, name="prior")
    assert [file.name for file in files] == ["prior-loss.png"]
    loss, score = figures["prior-loss.png"].axes
    assert loss.get_yscale() == "linear"
    assert [tick % 1 for tick in loss.get_xticks()] == [0.0] * len(loss.get_xticks())
    assert score.get_title() == "Prior, validation"
    # The score is less the nats per token, the picture shows nats.
    assert score.get_lines()[0].get_ydata().tolist() == [-22.0]


def test_each_kind_of_prior_has_its_panels_and_enough_ticks(tmp_path, figures):
    runs = {
        f"{arm}, plain, {prior}": write_log(
            tmp_path / arm / prior, [4.5, 1.0 + place], codebook=False, scored=False
        )
        for prior in ("autoregressive", "masked")
        for place, arm in enumerate(("1-frame", "8-frame"))
    }
    save_training_curves(runs, tmp_path, name="prior")
    first, second = figures["prior-loss.png"].axes
    assert first.get_title() == "Autoregressive prior, training"
    assert second.get_title() == "Masked prior, training"
    assert (first.get_ylabel(), second.get_ylabel()) == ("Nats per token", "Nats per masked token")
    for axes in (first, second):
        assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[4.5, 1.0], [4.5, 2.0]]
        low, high = axes.get_ylim()
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 4
    check_room(figures["prior-loss.png"])


def test_runs_without_a_log_have_no_picture(tmp_path):
    assert save_training_curves({"1-frame": tmp_path / "none"}, tmp_path) == []


@pytest.mark.parametrize("top", [0.9, 3.0, 400.0])
def test_many_long_labels_have_room(tmp_path, figures, top):
    arms = ("1-frame", "8-frame", "8-frame-repeat", "18-frame", "18-frame-repeat", "1-frame-patch2")
    runs = {
        f"{arm}, {stem}": write_log(tmp_path / f"{arm}-{stem}", [top, top / 3, 0.2])
        for arm in arms
        for stem in ("plain", "layernorm")
    }
    save_training_curves(runs, tmp_path)
    for figure in figures.values():
        check_room(figure)


def result(arm, stem, seed, psnr, fd, generation=None, name="FD(digits)"):
    return {
        "arm": arm,
        "stem": stem,
        "seed": seed,
        "bits": 160.0 if arm == "1-frame" else 640.0,
        "frames": 1,
        "reconstruction": {"psnr": psnr, "fd": fd, "fd_name": name},
    } | ({} if generation is None else {"generation": generation})


def test_the_summary_has_means_errors_seeds_and_floors(tmp_path, figures):
    results = [result("1-frame", "plain", s, 20.0 + 2 * s, 5.0) for s in range(2)]
    results += [
        result("8-frame", stem, 0, p, 4.0) for stem, p in (("plain", 25), ("layernorm", 17))
    ]
    floors = [result("8-frame", "patch-k-means", 0, 19.0, None)]
    save_summary(results, tmp_path / "summary.png", floors=floors)
    psnr, fd = figures["summary.png"].axes
    assert [label.get_text() for label in psnr.get_yticklabels()] == [
        "1-frame\n160 bits",
        "8-frame\n640 bits",
    ]
    means = [bar.lines[0].get_xydata().tolist()[0] for bar in psnr.containers]
    assert [mean for mean, _ in means] == [21, 25, 17]
    assert [height for _, height in means] == pytest.approx([-0.18, 0.82, 1.18])
    spread = psnr.containers[0].lines[2][0].get_segments()[0]
    assert spread[:, 0].tolist() == pytest.approx([20, 22])
    seeds = [line for line in psnr.get_lines() if line.get_marker() == "."]
    assert [line.get_xdata().tolist() for line in seeds] == [[20, 22]]
    (floor,) = psnr.collections[-1].get_segments()
    assert floor.ravel().tolist() == pytest.approx([19, 0.64, 19, 1.36])
    assert psnr.get_title() == "PSNR (dB) ↑"
    assert fd.get_title() == "FD(digits)\nreconstructions ↓"
    # The floor has no distance here; only error bars are drawn.
    assert all(len(c.get_segments()) == 1 for c in fd.collections)
    check_room(figures["summary.png"])


def test_the_summary_takes_floors_among_the_results_and_shows_priors(tmp_path, figures):
    generation = {"autoregressive": {"fd": 9.0}, "masked": {"fd": None}}
    results = [
        result("1-frame", "plain", 0, 20.0, 5.0, generation),
        result("8-frame-repeat", "plain", 0, 20.1, 5.0),
        result("1-frame", "patch-k-means", 0, 19.0, 6.0),
    ]
    save_summary(results, tmp_path / "summary.png")
    titles = [axes.get_title() for axes in figures["summary.png"].axes]
    assert titles[2:] == ["FD(digits)\nautoregressive samples ↓", "FD(digits)\nmasked samples ↓"]
    sampled = figures["summary.png"].axes[2]
    assert [bar.lines[0].get_xdata()[0] for bar in sampled.containers] == [9.0]
    texts = [text.get_text() for text in figures["summary.png"].legends[0].get_texts()]
    assert texts == ["stem plain", "patch-k-means"]
    check_room(figures["summary.png"])


@pytest.mark.parametrize("priors", [("masked",), ("autoregressive", "masked")])
def test_samples_have_their_arms_alone_and_the_line_of_real_images(tmp_path, figures, priors):
    name = "FD(random convolution)"
    generation = {prior: {"fd": 9.0 + place} for place, prior in enumerate(priors)}
    results = [
        result("1-frame", "plain", 0, 20.0, 5.0, generation, name),
        result("8-frame-repeat", "plain", 0, 20.1, 5.0, None, name),
        result("1-frame-patch2", "plain", 0, 21.1, 5.0, generation, name),
    ]
    floors = [result("8-frame-repeat", "patch-k-means", 0, 19.0, 6.0, None, name)]
    save_summary(results, tmp_path / "summary.png", floors=floors, real={"fd": 2.5})
    figure = figures["summary.png"]
    _, reconstructions, *sampled = figure.axes
    assert len(reconstructions.get_yticks()) == 3
    assert len(sampled) == len(priors)
    for axes in sampled:
        assert axes.get_ylim() == (1.5, -0.5)
        assert len(axes.containers) == 2
        (line,) = (found for found in axes.get_lines() if found.get_linestyle() == "--")
        assert line.get_xdata() == [2.5, 2.5]
    named = [label.get_text() for label in sampled[0].get_yticklabels()]
    assert named == ["1-frame\n160 bits", "1-frame-patch2\n640 bits"]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["stem plain", "patch-k-means", "real images, test part"]
    check_room(figure)


def test_no_results_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one trained tokenizer, got none"):
        save_summary([result("1-frame", "patch-k-means", 0, 1.0, 1.0)], tmp_path / "a.png")
