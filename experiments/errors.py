"""The one exception that is a user's business."""


class UserError(Exception):
    """What is wrong, which value, and what to do, in one or two lines; entry points print it without a traceback."""
