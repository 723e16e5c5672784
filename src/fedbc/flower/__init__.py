"""Every algorithm of the package on real devices, with Flower (`pip install fedbc[flower]`)."""
