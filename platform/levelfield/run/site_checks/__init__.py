"""Checks of what a site's file says, before a run needs it. Each launcher of Levelfield has a module."""
