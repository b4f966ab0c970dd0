"""JAX, TensorFlow and Keras on real ranks, and the images that have them: `./test frameworks`."""
