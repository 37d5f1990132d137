"""Text to tokens and back, in the agent, without torch."""
