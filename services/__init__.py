"""The processes of one node. They never import each other; they meet in files and sockets."""
