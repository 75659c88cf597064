"""How a program is computed: the reference, the CPU team, CUDA."""
