"""Stage 4, after the plan: check one, or what was released under it, without trusting whoever made it.

folder: everything that the files state, against each other; posteriors: every promise proven again; certificates: the
plan's own, and that of a run, word for word; release: the model that was trained under it.
"""

from hush.verification.checks import Check, Verification
from hush.verification.folder import verify

__all__ = ["Check", "Verification", "verify"]
