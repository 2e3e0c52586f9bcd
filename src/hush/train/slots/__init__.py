"""Training on texts with slots: private tokens of the texts, public tokens of their skeletons, and batches of both."""
