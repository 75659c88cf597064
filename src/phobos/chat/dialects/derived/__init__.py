"""A dialect learnt from a chat template: how it writes calls, results and thoughts in past turns is how its model does.

`probes.py` renders small conversations and cuts them where the known words stand; `markup.py` reads a call form off
what stands between; `derivation.py` puts them together and believes only a form that reads back what was rendered.
"""
