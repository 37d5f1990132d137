"""`phi3-mesh batch`: a file of prompts in, a file of answers out, safe to interrupt at any time."""
