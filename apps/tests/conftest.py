"""Shape annotations are checked while the tests run, and only then."""

import torch
from jaxtyping import install_import_hook

# Of all members: what is left out would be cached unchecked, under the name of the checked one.
MEMBERS = ["probseq", "sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo", "probseq_apps"]
install_import_hook(MEMBERS, "beartype.beartype")

# One thread: the tests are small, and two threads under load are slower than one.
torch.set_num_threads(1)
