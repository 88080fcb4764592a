"""Shape annotations are checked while the tests run, and only then."""

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Of all members: what is left out would be cached unchecked, under the name of the checked one.
MEMBERS = ["probseq", "sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo", "probseq_apps"]
install_import_hook(MEMBERS, "beartype.beartype")
# Ray listens on this machine alone, reports to nobody, and has this environment as it is.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"


def _timeless(values):
    if isinstance(values, list):
        return [_timeless(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {key: _timeless(value) for key, value in values.items() if not key.endswith("seconds")}


@pytest.fixture(scope="session")
def timeless():
    """Takes the seconds out of results."""
    return _timeless


@pytest.fixture(scope="session")
def report_of():
    """What report.json holds, without times."""
    from probseq_apps.engine.files import read_json

    return lambda folder: _timeless(read_json(folder / "report.json"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data beside the repository; skip without it."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "uv.lock").is_file() and (data := folder.parent / "shared" / "data").is_dir():
            return data
    pytest.skip("no folder shared/data beside the repository")


@pytest.fixture(scope="session", autouse=True)
def one_worker():
    """Several processes for a run of seconds take longer than one; `--workers 2` starts them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probseq_apps.run._default_workers", lambda: 1)
        yield


@pytest.fixture
def load_run():
    """Put the selected weights of a run's last checkpoint into a model, in eval mode."""
    # Late: behind the import hook.
    from probseq_apps.engine.checkpoints import load_latest_checkpoint, load_weights

    def load(model, folder):
        checkpoint = load_latest_checkpoint(folder / "checkpoints")
        # Without a best validation the last weights count; their average stands in their place.
        load_weights(model, checkpoint.best or {**checkpoint.weights, **(checkpoint.ema or {})})
        model.eval()

    return load
