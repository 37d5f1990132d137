"""Closed by default: keys, join tokens, who may connect, who is calling.

A mesh has one CURVE key pair. Its members (nodes, brokers, operators) hold the secret half; clients hold their own pair
and the mesh's public half. What a process uses:

    loading      member_credentials, client_credentials: find or make the keys
    member_key   join: keep the key of a mesh that another host gave
    registry     ClientRegistry: named client keys, made, listed and revoked
    gatekeeper   Gatekeeper: lets a server's callers in, or not
    identified   server_link: the frames of a server together with who sent them
    sockets      secure_client for a Connection; require_loopback for --insecure
"""
