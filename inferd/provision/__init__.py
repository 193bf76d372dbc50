"""The engine's own environment and the demo model: made, checked, repaired."""
