"""The panels of the dashboard, one file each. A panel draws a `Moment` and keeps nothing but what it last drew."""
