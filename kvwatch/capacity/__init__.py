"""KV arithmetic: what a token, a sequence and a pool take and hold. Pure; used by signals, advice and plan."""
