"""The screens, one file each: opening, loading, dashboard, a request's timings, help."""
