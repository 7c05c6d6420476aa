"""Quantizing a folder of safetensors into another one, one block of the model at a time.

- `storage.py`, `encode.py`, `config.py`: how a quantized matrix is stored (compressed-tensors,
  GPTQ, AWQ, bitsandbytes) and described in config.json;
- `matrices.py`: which matrices a model has, and which of them share their inputs;
- `plan.py`, `write.py`: planning and writing the new folder;
- `calibrated.py`, `calibrate.py`: the interface of runners for methods that need activations, and
  the calibration pass that uses it;
- `convert.py`: converting packed matrices to another format without rounding;
- `methods.py`: the methods, for the registry of `hearth.quant.methods`.
"""
