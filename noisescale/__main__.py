"""`python -m noisescale`, the same as `noisescale`."""

import sys

from noisescale.cli import main

sys.exit(main())
