"""The broker: finds nodes, queues requests, sends each to a node with room, and relays the answers."""
