"""Pages for admins who prefer to look: the second listener's own little web site."""
