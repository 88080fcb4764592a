"""`python -m probseq_apps` is `probseq`, so that torchrun starts it."""

import os

from probseq_apps.cli import main

try:
    status = main()
except SystemExit as stop:
    status = stop.code
if isinstance(status, int) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
    from probseq_apps.engine.distributed import leave

    leave(status)
raise SystemExit(status)
