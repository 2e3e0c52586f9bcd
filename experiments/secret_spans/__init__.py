"""Study: secret words hidden as spans, with what surrounds them learnt without noise."""
