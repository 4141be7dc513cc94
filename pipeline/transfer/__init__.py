"""TransferStation: batch buffers in shared memory, claimed, filled, taken and given back."""
