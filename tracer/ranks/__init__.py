"""Many ranks: finding recordings, understanding each in a process of its own, joining them."""
