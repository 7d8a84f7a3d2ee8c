"""From a batch of changes to messages: kinds, headers and bodies, column by column.

They take the parts of `sinks/rows`. `encode` and `several` make one message of one change or of
many (`encoders` chooses), `dialect` and `layout` say what a body looks like, `formatter` puts the
bytes together.
"""
