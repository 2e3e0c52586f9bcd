"""Hypothesis profiles: the same examples on every run in continuous integration, fresh ones at the desk."""

import os

from hypothesis import settings

# No deadline: a first call may pay for a lazy import.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "desk")
