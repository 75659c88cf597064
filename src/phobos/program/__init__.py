"""What a model computes, as one flat program of steps."""
