"""What a training may be asked for: its settings, stated once. Importing this needs no torch."""

__all__ = ["MAX_LEARNING_RATE"]

MAX_LEARNING_RATE = 1e3  # beyond it, no optimizer does anything but overflow
