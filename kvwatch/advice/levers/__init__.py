"""Everything that can be changed, one function a lever: a `Case` goes in, a `Change` comes out, or ``None`` where it does not apply.

The knowledge is the operator's playbook, brought up to date: what the detected vLLM does not accept or already does is
not advised.
"""
