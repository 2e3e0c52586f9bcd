"""``HushTrainer``: private training with the interface of the Hugging Face Trainer."""
