"""Rounding matrices to few bits, with and without calibration data, on any device of PyTorch.

Every method takes one matrix [outputs, inputs] and a `Grid`, and makes a `PackedWeight` that
`hearth.kernels.packed` multiplies:

- `grid.py`: what a weight can be rounded to, and rounding to nearest (`round_plain`);
- `hqq.py`: scales and zeros that suit most weights rather than outliers, without data;
- `gptq.py`: columns one after the other, later ones making up for errors of earlier ones, by the
  second moments of activations (`Hessian`, which is also what an importance matrix holds);
- `awq.py`: channels scaled by their activations before rounding, clipped ranges, and where scales
  are folded into;
- `choose.py`: the candidate of least output error on activations that no method has seen.
"""
