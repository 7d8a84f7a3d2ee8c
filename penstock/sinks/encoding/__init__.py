"""From a batch of changes to messages: kinds, headers and bodies, column by column.

A `part` is what they take. `encode` and `several` make one message of one change or of many
(`encoders` chooses), `dialect` and `layout` say what a body looks like, `formatter` puts the bytes
together.
"""
