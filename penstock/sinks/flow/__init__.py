"""Flow control for any sink: back-pressure by the server's answer time, and a circuit breaker."""
