"""Hostile input of every kind, sent to a real broker and a real node while a good client checks its answers."""
