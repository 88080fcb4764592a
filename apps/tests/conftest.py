"""Shape annotations are checked while the tests run, and only then."""

from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Of all members: what is left out would be cached unchecked, under the name of the checked one.
MEMBERS = ["probseq", "sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo", "probseq_apps"]
install_import_hook(MEMBERS, "beartype.beartype")


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
