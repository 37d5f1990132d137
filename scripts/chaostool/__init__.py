"""A mesh of synthetic nodes under load and under faults, with every answer checked."""
