#!/usr/bin/env python3
"""The README's C++ block equals the section of the program that the tests compile.

usage: readme_example_test.py README.md tests/ops/attention_example.cc

The block is the ```cpp one that follows the line <!-- tests/ops/attention_example.cc --> in the
README. Exit 77 (skipped) while the README has no such line.
"""
import re
import sys


def main(readme_path, source_path):
    source = open(source_path).read()
    section = re.search(r"// \[example begins\]\n(.*?)// \[example ends\]", source, re.S)
    if not section:
        sys.exit(f"{source_path}: the marks of the example are missing")
    try:
        readme = open(readme_path).read()
    except FileNotFoundError:
        readme = ""
    mark = "<!-- tests/ops/attention_example.cc -->"
    if mark not in readme:
        print(f"{readme_path} has no {mark}: nothing to compare")
        return 77
    block = re.search(re.escape(mark) + r"\s*```cpp\n(.*?)```", readme, re.S)
    if not block:
        sys.exit(f"{readme_path}: no ```cpp block after {mark}")
    if block.group(1) != section.group(1):
        sys.exit(f"{readme_path}: the block after {mark} is not the example of {source_path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
