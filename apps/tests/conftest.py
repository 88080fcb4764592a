"""Shape annotations are checked while the tests run, and only then."""

import pytest
from jaxtyping import install_import_hook

# Of all members: what is left out would be cached unchecked, under the name of the checked one.
MEMBERS = ["probseq", "sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo", "probseq_apps"]
install_import_hook(MEMBERS, "beartype.beartype")


@pytest.fixture(scope="session", autouse=True)
def one_worker():
    """Several processes for a run of seconds take longer than one; `--workers 2` starts them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probseq_apps.run._default_workers", lambda: 1)
        yield
