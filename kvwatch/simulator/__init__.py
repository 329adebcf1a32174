"""A small model of vLLM's V1 scheduler that serves ``/metrics``: the demo, and the tests' fake server."""
