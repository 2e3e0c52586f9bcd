"""Can the blow-up function be computed? Another library's privacy loss distribution beside hush, on the same cases."""
