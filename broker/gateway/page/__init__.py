"""The gateway's page: the live mesh and a playground, for a browser. Static files and one stream of events."""
