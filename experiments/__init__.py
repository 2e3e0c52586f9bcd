"""The paper's studies on real data, each one command: `python -m experiments.STUDY --help`."""
