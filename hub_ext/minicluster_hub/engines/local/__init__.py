"""The engine `local`: this machine seen as several nodes, each task a process group of its own."""
