"""Records into tables, and the tables read: the schemas stand here. What is concluded from them belongs to
`analysis`.
"""
