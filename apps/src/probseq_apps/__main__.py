"""`python -m probseq_apps` is `probseq`, so that torchrun starts it."""

import os

from probseq_apps.cli import main

status = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    from probseq_apps.engine.distributed import leave

    leave(status)
raise SystemExit(status)
