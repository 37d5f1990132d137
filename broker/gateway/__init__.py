"""The front doors: HTTP APIs that existing programs speak, in front of a mesh. A client of the mesh and nothing more.

It imports `mesh`, never the broker or the node, so failover, deadlines, cancellation and fairness are the client
library's. Any number of gateways may run side by side.
"""
