"""What methods learned beside their models, as they recorded it: read, put into tables, drawn.

How a tensor is read is decided by its shape and by its name, `what[labels]/part`; docs/reference/run-folder.md has the
convention.
"""
