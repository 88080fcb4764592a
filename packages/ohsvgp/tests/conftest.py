"""Shape annotations are checked while the tests run, and only then."""

import torch
from jaxtyping import install_import_hook

install_import_hook(["probseq", "ohsvgp"], "beartype.beartype")

# One thread: the tests are small, and two threads under load are slower than one.
torch.set_num_threads(1)
