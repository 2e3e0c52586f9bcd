"""Limits of what training may be asked for, where torch is not needed to state them."""

__all__ = ["MOST_LEARNING_RATE"]

MOST_LEARNING_RATE = 1e3  # beyond it, no optimizer does anything but overflow
