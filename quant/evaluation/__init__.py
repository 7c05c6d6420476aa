"""Evaluating a model: how a text is cut and scored (`protocols`), how the logits score it alone and
compared with a reference (`divergence`), and estimates with standard errors (`estimates`).

`hearth.backends.bench.logits` computes the logits.
"""
