"""The API of what is stored: blobs, artifacts, snapshots, data sets, images."""
