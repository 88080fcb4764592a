"""`python -m probseq_apps` is `probseq`, so that torchrun starts it."""

from probseq_apps.cli import main

raise SystemExit(main())
