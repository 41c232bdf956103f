"""Chats of the page that the daemon keeps for those who ask for it."""
