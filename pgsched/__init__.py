"""CPU-heavy Python tasks that live in PostgreSQL."""
