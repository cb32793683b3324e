"""Type-checked only, never run: a user's file, against the checkout and against the installed wheel."""

import seriatim

assert seriatim.__doc__
