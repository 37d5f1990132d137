"""`phi3-mesh chat`: a conversation in the terminal."""
