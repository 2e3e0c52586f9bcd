"""The owner's ledger of a chain: every training that began, what it was planned for, and which secret had which id.

ledger (the folder, and what may be written into it) → history (what earlier releases saw of the rows of a scan) →
spending (what each secret was promised, has spent and has left).
"""

from hush.ledger.ledger import Entry, Ledger

__all__ = ["Entry", "Ledger"]
