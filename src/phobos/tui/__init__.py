"""The dashboard: a terminal picture of the serving engine, drawn only from `counters.snapshot()`.

`choose` says whether it is drawn, `log` collects the lines it shows, `rates` derives what panels need from
successive snapshots; these import neither Textual nor the engine. `run.run_dashboard` is the entry.
"""
