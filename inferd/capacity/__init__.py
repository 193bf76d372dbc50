"""What a model can do on this machine, by measurement."""
