"""The commands of `inferd`."""
