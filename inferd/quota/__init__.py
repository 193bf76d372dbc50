"""Who may ask and how much: keys, token buckets, estimates."""
