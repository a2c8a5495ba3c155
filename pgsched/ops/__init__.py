"""What surrounds the work: metrics, logs, HTTP and the embedded server. Runs in the supervisor and in commands."""
