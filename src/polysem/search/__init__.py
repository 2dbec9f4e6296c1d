"""Search: an index of sets on disk, and the engines that find the best matches in it."""
