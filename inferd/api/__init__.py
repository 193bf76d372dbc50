"""The HTTP surface: what clients and admins send, and what they get back."""
