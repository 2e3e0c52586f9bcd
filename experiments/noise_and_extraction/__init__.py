"""Noise against extraction in pretraining: how much noise stops a language model from saying its training text.

The paper's Figures 2 and 3 on open text: Gemma-2 models of three sizes are pretrained with per-example clipping and a
noise multiplier set by hand. Nothing is certified here: no plan, no promise, fixed batches, a known seed. The flow:

corpus.py (with vocabulary.py, kinds.py)   texts to rows of tokens, on the machine that has the texts
pretraining.py, measures.py                one model of one size with one noise, what it lost and what it says
study.py                                   all runs, most telling first, each kept as it ends
summary.py, tables.py, drawing.py          tables and figures from the runs alone
"""
