"""What operators see: reports of all processes, health, HTTP endpoints, metrics, logs."""
