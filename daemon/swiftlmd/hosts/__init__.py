"""Other machines: who they are, what they have, how fast the link is."""
