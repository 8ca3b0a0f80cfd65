"""Commands, one a make target: they read arguments, call one function and print. What they do lies in the other
folders.
"""
