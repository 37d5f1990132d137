"""The node: an agent that does all I/O and never imports torch, and the workers it keeps."""
