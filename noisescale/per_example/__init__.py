"""The norm of each example's own gradient: exact by `vmap`, fast by hooks on known layers. Parts of more than one
example belong to `tracking`.
"""
