"""How a program is computed: the reference, the CPU team, CUDA. `opening.open_backend` is the way in."""
