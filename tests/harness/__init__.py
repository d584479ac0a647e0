"""What tests and benchmarks share: processes and nodes under test, tenants of the synthetic accelerator, reports, the runner."""
