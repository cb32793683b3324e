"""The audit: from the database, and from a manifest where there is one, what happened to every message.

`evidence` reads the rows; `judging` says what they prove, over values alone; `report` is the answer.
"""
