"""The benchmarks' own logic: what could be wrong without being noticed. Measures nothing."""
