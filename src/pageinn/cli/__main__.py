"""`python -m pageinn.cli`, the same as `pageinn`."""

import sys

from pageinn.cli.main import main

sys.exit(main())
