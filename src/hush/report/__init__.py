"""Stage 7, what people look at: figures, and later one self-contained page."""
