"""`phi3-mesh doctor`: tests each step from the interfaces to a generated token, and names the one that fails."""
