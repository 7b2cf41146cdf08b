"""One concrete algorithm spec a file; the registry imports every module it finds here.

Must not know: the algorithms themselves.
"""
