"""Quantizing a folder of safetensors into another one, a block of the model at a time.

- `storage.py`, `encode.py`, `config.py`: how a quantized matrix is stored (compressed-tensors,
  GPTQ, AWQ, bitsandbytes), and what config.json says of it;
- `matrices.py`: which matrices a model has, and which of them share their inputs;
- `plan.py`, `write.py`: the new folder, before, while and after it is written;
- `calibrated.py`, `calibrate.py`: what a runner offers to methods that need activations, and the
  pass that uses it;
- `convert.py`: packed matrices into another format, without rounding;
- `methods.py`: the methods, for the registry of `hearth.quant.methods`.
"""
