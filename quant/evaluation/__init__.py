"""Judging a model by numbers: how a text is cut and scored (`protocols`), what logits say of it
next to those of a reference (`divergence`), and estimates with standard errors (`estimates`).

Where the logits come from is not decided here: `hearth.backends.bench.logits` computes them.
"""
