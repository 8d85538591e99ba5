"""Run another benchmark beside one busy process, as on a machine that has other work.

    python -m benchmarks.beside_busy graph_cost --presets debian

What follows the benchmark's name are its own options.
"""

import subprocess
import sys


def main() -> int:
    """Keep one core busy until the benchmark named in the first argument has ended."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    name, *arguments = sys.argv[1:]
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
            return subprocess.run(command, check=False).returncode
        finally:
            busy.kill()


if __name__ == "__main__":
    sys.exit(main())
