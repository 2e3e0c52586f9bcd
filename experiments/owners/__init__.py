"""Half a million owners: every author of an abstract is a secret, and no abstract is without one."""
