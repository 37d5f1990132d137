"""What a member shows to Prometheus, and the server that shows it. Imported only where it is wanted."""
