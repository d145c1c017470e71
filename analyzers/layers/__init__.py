"""The repeating pattern of layers in a launch sequence, and the place of each kernel in it."""
