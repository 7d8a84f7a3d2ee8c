"""Text, and every type that travels as its text: numeric, uuid, enums, inet, ranges, composites.

All of them are UTF-8, because the session's client_encoding is; a database in SQL_ASCII may send
bytes that are not, and those are a ValueError (the decoder names table and column).
"""

text = bytes.decode
