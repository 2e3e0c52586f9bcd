"""Study 1: words of arXiv abstracts as secrets, a masked language model, the paper's four panels with hush's beside."""
