"""Which request goes next, and to which target. Knows no processes."""
