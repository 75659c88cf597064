"""This machine as the program finds it: memory, processors, graphics cards, the user's folders, running servers."""
