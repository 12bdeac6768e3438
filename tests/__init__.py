"""The test suites: unit, property, conformance, chaos; whole brokers as child processes in peers."""
