"""The command `phi3-mesh`: generate, chat, batch and doctor. Uses the client library and nothing behind it."""
