"""flashsmith for torch tensors: an operator that torch.compile, export and CUDA graphs know."""
