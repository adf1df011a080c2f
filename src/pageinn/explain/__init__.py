"""Why prompts that could share a prefix do not: from two prompts (culprit) to a whole log (analysis)."""
