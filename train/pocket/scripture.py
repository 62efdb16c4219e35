"""Public-domain text for the first pair: the King James Version through the `bible` command.

python -m train.pocket.scripture kjv.jsonl      (Debian package bible-kjv)
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from train.pocket.data import write_documents


def chapters() -> list[dict[str, str]]:
    """One document a chapter, verse numbers removed."""
    command = ["bible", "-f", "gen1:1-rev22:21"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    grouped: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+ ?\w*?)(\d+):\d+ (.*)", line)
        if match:
            grouped.setdefault(match[1] + match[2], []).append(match[3].strip())
    return [{"text": " ".join(verses), "source": "KJV"} for verses in grouped.values()]


if __name__ == "__main__":
    write_documents(Path(sys.argv[1]), chapters())
