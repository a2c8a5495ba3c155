"""Measurements that anybody can repeat: ``python -m benchmarks SCENARIO``. Never part of a test."""
