"""The commands of `golden/commands.toml`: every flag is in it, and what some of them do.

What is expected was written by `golden/golden_expected.py`; `.ci/golden` compares all commands with
those of another commit.
"""

import contextlib
import json
import re
from pathlib import Path

import pytest

from probseq_apps.cli import main
from probseq_apps.registry import REGISTRY

# Flags and recipes that came later than the tree that others are compared with.
LISTED = """
    --help --help-all --config --quiet --no-quiet --train-size --workers
    --sgpa.sample --sgpa.no-sample --kepsvgp.sample --kepsvgp.no-sample --ensemble-size
    --kernel-noise.noise --kernel-noise.kernel --trend --no-trend --season --inputs
    --hyperparameters --lines --kernel-noise.initial-variance --kernel-noise.symmetric
    --process.prediction --log-to --skip-unreadable --no-skip-unreadable --separator --decimal
    --encoding --widen --no-widen --page --accumulate --executor --ray.cpus --ray.gpus --unknown
    --num-unknown --error-rate speakers speakers-choices speakers-all
    speakers-ensembles speakers-controls own-sequences --softmax-keys.num-keys
    --png folder-hvae --labels --no-labels --label-dropout
    --guidance --kernel-noise.no-symmetric digits-few digits-few-choices digits-few-all
    digit-sets digit-sets-choices digit-sets-all digit-sets-ensembles cifar10-cpu rotated-mnist
    gaussian-diffusion fair-diffusion fair-tokens --autoregressive.final-learning-rate
    --autoregressive.grad-clip --masked.final-learning-rate --masked.grad-clip
"""
NEW = {*LISTED.split(), *(f"fair-hvae-{noise}" for noise in (".02", ".05", ".1", ".3"))}
NEW |= {("--sgpa.covariance", "inducing"), ("--method", "fading"), ("--pooling", "flatten")}
# Commands that came later have tests of their own.
LATER = ("bench streams", "calibrate", "claims", "forecast", "generate export")
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def golden():
    """The module that knows what is expected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(GOLDEN))
        import golden_expected

        yield golden_expected


@pytest.fixture
def told(monkeypatch, capsys):
    """What a command prints before it ends."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("tyro._fmtlib._FORCE_UTF8_BOXES", True)  # else its frames are others

    def tell(arguments):
        with contextlib.suppress(SystemExit):
            main(arguments.split())
        return capsys.readouterr().out

    return tell


def listed(golden, command):
    """Arguments of a command in the list, by the names that flags have now."""
    found = [step.arguments for steps in golden.load_steps().values() for step in steps]
    name = {"bench": "bench attention"}.get(command, command)
    return [golden.renamed(own) for own in found if golden.command_name(own) == name]


@pytest.mark.slow
@pytest.mark.parametrize("speed", ["fast", "slow"])
def test_commands_do_what_they_did(speed, golden):
    expected = json.loads(golden.EXPECTED.read_text("utf-8"))[speed]
    found = golden.run_scenarios(speed)
    assert found.keys() == expected.keys()
    wrong = {
        f"{step}: {place}": [part[step].get(place) for part in (expected, found)]
        for step in expected
        for place in golden.unequal(expected[step], found[step])
    }
    assert not wrong


@pytest.mark.parametrize("command", [name for name in REGISTRY if name not in LATER])
def test_every_flag_and_choice_of_a_command_is_in_the_list(command, golden, told):
    used = set()
    for arguments in listed(golden, command):
        flag = ""
        for word in arguments:
            flag = word if word.startswith("--") else flag
            used |= {word, (flag, word)} if "--help-all" not in arguments else set()
    missing = []
    for names, choices, _ in golden.read_help(told(f"{command} --help-all")).values():
        missing += [name for name in names if name not in used | NEW]
        wanted = {choice: {(name, choice) for name in names} for choice in choices}
        wanted = {} if NEW & set(names) else wanted
        missing += [
            (names[0], choice) for choice, ways in wanted.items() if not ways & (used | NEW)
        ]
    assert not missing, f"into a step of golden/commands.toml, or NEW or LATER here: {missing}"


@pytest.mark.parametrize(
    "command", [name for name in REGISTRY if not re.search("bench", name) and name not in LATER]
)
def test_every_recipe_is_in_the_list(command, golden, told):
    names = re.search(
        r"--recipe STR.*?One of (.*?)\. ", " ".join(told(f"{command} --help-all").split())
    )
    known = set(re.sub("[│ ]", "", names[1]).split(",")) if names else set()
    asked = {
        own[own.index("--recipe") + 1]
        for own in listed(golden, command)
        if "--help-all" in own and "--recipe" in own
    }
    assert asked == known - NEW
