"""Queries about what is stored: blobs, data sets, images, and how much each owner has."""
