"""Study 4: protecting a code base with secret projects, and what that costs a code-completion model.

company: whose files hold which secrets; arms: plans for each way to train; prepare: all of it as one folder of tokens;
training and measures: what needs a GPU and nothing but that folder; study: the runs; figures: what came of them.
"""
