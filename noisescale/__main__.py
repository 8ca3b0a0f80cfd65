"""`python -m noisescale`, the same as `noisescale`."""

import sys

from noisescale.cli.main import main

sys.exit(main())
