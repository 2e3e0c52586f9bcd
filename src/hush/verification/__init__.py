"""Stage 4, after the plan: check one without trusting whoever made it.

folder: everything that the files state, against each other; posteriors: every promise proven again.
"""

from hush.verification.checks import Check, Verification
from hush.verification.folder import verify

__all__ = ["Check", "Verification", "verify"]
