"""The rules: each looks for one kind of cause and states what it found, with cost and advice."""
