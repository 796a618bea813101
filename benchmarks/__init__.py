"""What observing and flushing cost, measured against what others do on the same tensors."""
