"""Rounding matrices to few bits, with and without calibration data, on any device of PyTorch.

Every method takes one matrix [outputs, inputs] and a `Grid`, and makes a `PackedWeight` that
`hearth.kernels.packed` multiplies:

- `grid.py`: the values that weights can be rounded to, and rounding to nearest (`round_plain`);
- `hqq.py`: scales and zero points that suit most weights rather than outliers, without data;
- `gptq.py`: columns are rounded one after the other, and later ones compensate for the errors of
  earlier ones, by the second moments of activations (`Hessian`, whose diagonal is what an
  importance matrix holds);
- `awq.py`: channels scaled by their activations before rounding, clipped ranges, and folding of
  the scales into the preceding weights;
- `choose.py`: the candidate of least output error on activations that no method has seen.
"""
