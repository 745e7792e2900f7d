"""How fast the interactive page draws: viewer_frames.py PIPEWRIGHT

Draws 60 frames of zoom and pan over 10^5 actions in a headless chromium without a GPU, and prints the median and the
longest. A frame ends when its pixels can be read.
"""

import os
import re
import subprocess
import sys
import tempfile

FRAMES = """<pre id="frames"></pre><script>
{
  const all = [], end = viewer.state.runs[0].makespan;
  for (let i = 0; i < 60; ++i) {
    const started = performance.now();
    if (i < 30) viewer.setCamera(i * end / 100, end - i * end / 100);
    else viewer.setCamera(i * end / 100, (i + 40) * end / 100);
    viewer.painter.draw();
    viewer.painter.context.getImageData(0, 0, 1, 1);
    all.push(performance.now() - started);
  }
  all.sort((a, b) => a - b);
  document.getElementById('frames').textContent = `median ${all[30].toFixed(1)} ms, longest ${all[59].toFixed(1)} ms`;
}
</script>"""


def main():
    pipewright = sys.argv[1]
    shapes = {
        "a compute order of 98,304 actions": ["--ranks", "32", "--stages", "128", "--microbatches", "384", "--level", "compute_only"],
        "a program of 98,560 actions": ["--ranks", "16", "--stages", "64", "--microbatches", "256"],
    }
    for what, shape in shapes.items():
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page.html")
            subprocess.run([pipewright, "print", "Interleaved1F1B", *shape, "-o", page], check=True)
            size = os.path.getsize(page)
            with open(page, "a", encoding="utf-8") as file:
                file.write(FRAMES)
            command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
                       f"--user-data-dir={folder}/profile", "--dump-dom", f"file://{page}"]
            shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            print(f"{what}, {size} bytes: {re.search('>(median[^<]*)', shown).group(1)}")


if __name__ == "__main__":
    main()
