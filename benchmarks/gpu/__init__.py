"""Does a GPU wait for data?"""
