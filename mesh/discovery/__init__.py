"""Finding members of the mesh: mDNS, a static list and DNS names. A hint only: the handshake is the truth."""
