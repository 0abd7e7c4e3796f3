"""Property tests draw the same examples in every run; HYPOTHESIS_PROFILE=explore draws new ones."""

import os
import signal

from hypothesis import settings

settings.register_profile("seeded", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "seeded"))

# A shell starts what runs in its background with Ctrl-C ignored, and so would be all processes that
# tests start, and send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
