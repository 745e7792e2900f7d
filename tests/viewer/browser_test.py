"""Opens pages of `pipewright print --format html` in a headless browser: browser_test.py PIPEWRIGHT

Each case is a page, and the events of a user with what must be on the page afterwards (JavaScript, with the functions
of steps.js). The expected times are those of the papers' unit costs, worked out by hand.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PIPEWRIGHT = os.path.abspath(sys.argv.pop(1))
STEPS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "steps.js")
BROWSER = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


class BrowserTest(unittest.TestCase):
    def setUp(self):
        self.assertIsNotNone(BROWSER, "no browser: tests/viewer/run installs one")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def page(self, *arguments, expected=0, stdin=""):
        path = os.path.join(self.folder.name, "page.html")
        done = subprocess.run([PIPEWRIGHT, "print", *arguments, "-o", path], input=stdin, text=True, stderr=subprocess.DEVNULL)
        self.assertEqual(done.returncode, expected)
        with open(path, encoding="utf-8") as file:
            return file.read()

    def check(self, page, steps):
        """Runs steps, {name: JavaScript}, on a page."""
        path = os.path.join(self.folder.name, "steps.html")
        with open(STEPS, encoding="utf-8") as file:
            script = file.read()
        for name, body in steps.items():
            script += f"\nstep({json.dumps(name)}, () => {{ {body} }});"
        script += "\ndocument.getElementById('results').textContent = JSON.stringify(results);"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{page}<pre id=\"results\"></pre><script>{{ {script} }}</script>")
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
                   f"--user-data-dir={self.folder.name}/profile", "--dump-dom", f"file://{path}"]
        environment = dict(os.environ, HOME=self.folder.name)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        found = re.search(r'<pre id="results">(\{.*?\})</pre>', done.stdout, re.DOTALL)
        self.assertIsNotNone(found, f"no results\n{done.stderr[-2000:]}")
        results = json.loads(found.group(1).replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
        self.assertEqual(sorted(results), sorted(steps))
        for name, problem in results.items():
            with self.subTest(name):
                self.assertEqual(problem, "")

    # 1F1B on 4 ranks, unit costs: rank 3 runs F0 from 3 to 4 and B0 from 4 to 6; rank 2's B0 follows it.
    def test_one_schedule(self):
        page = self.page("1F1B", "--ranks", "4", "--microbatches", "8", "--level", "compute_only")
        self.check(page, {
            "title": """expect(textIn('titles'),
                '1F1B: 4 ranks, 4 stages, 8 microbatches; makespan 33, bubble 27.3%, cost 33, '
                + 'lower bound 33 (warm_up_and_cool_down), gap 0.0%');""",
            "legend": "expect(textIn('legend').includes('F forward') && !textIn('legend').includes('SEND'), true);",
            "hover": """pointer('pointermove', middleOf(named('2B0')));
                expect(textIn('tip').split('\\n'), ['2B0, rank 2, step 2', '6 to 8, takes 2',
                    'waits for 3B0 of rank 3', 'on a critical path']);""",
            "hover beside actions": """const at = middleOf(named('0F0'));
                pointer('pointermove', {clientX: at.clientX - 300, clientY: at.clientY});
                expect(document.getElementById('tip').hidden, true);""",
            "hover over memory": """const row = painter.layout.rows[0], at = middleOf(named('0F3'));
                pointer('pointermove', {clientX: at.clientX, clientY: surface.getBoundingClientRect().top + row.memory + 9});
                expect(textIn('tip').split('\\n').slice(1), ['activations 4, peak 4']);""",
            "click": """const at = middleOf(named('2B0'));
                pointer('pointerdown', at); pointer('pointerup', at);
                const lines = textIn('panel').split('\\n');
                expect(lines.includes('  3B0, rank 3, 4 to 6'), true, 'runs after');
                expect(lines.includes('  1B0, rank 1, 8 to 10'), true, 'runs before');""",
            "follow a link": """[...document.querySelectorAll('#panel .link')]
                    .find((link) => link.textContent.includes('3B0')).click();
                expect(textIn('panel').split('\\n')[0], '3B0, rank 3, step 1');""",
            "escape": "press('Escape'); expect(document.getElementById('panel').hidden, true);",
            "zoom keeps what is under the cursor": """const at = middleOf(named('1B2'));
                at.clientX = Math.round(at.clientX);
                const x = at.clientX - surface.getBoundingClientRect().left, time = painter.time(x);
                surface.dispatchEvent(new WheelEvent('wheel', {...at, deltaY: -200, cancelable: true}));
                expect(Math.abs(painter.time(x) - time) < 1e-9, true);
                expect(shown.camera.to - shown.camera.from < 21, true, 'zoomed in');""",
            "drag": """press('f'); press('+'); const from = shown.camera.from, at = middleOf(named('1B2'));
                pointer('pointerdown', at); pointer('pointermove', {...at, clientX: at.clientX - 50});
                pointer('pointerup', {...at, clientX: at.clientX - 50});
                const each = (shown.camera.to - shown.camera.from) / (painter.width - 84);
                expect(Math.abs(shown.camera.from - from - 50 * each) < 1e-9, true);
                expect(document.getElementById('panel').hidden, true, 'a drag selects nothing');""",
            "keyboard": """press('f'); expect(shown.camera.from, 0); press('+'); const from = shown.camera.from;
                press('ArrowRight'); expect(shown.camera.from > from, true); press('f');""",
            "search": """const query = document.getElementById('query'); press('/');
                expect(document.activeElement === query, true);
                query.value = '3b7';
                query.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
                expect(textIn('hits'), '1 of 1');
                expect(textIn('panel').split('\\n')[0], '3B7, rank 3, step 15');
                const {from, to} = shown.camera, action = named('3B7');
                expect(from <= shown.runs[0].start[action] && shown.runs[0].end[action] <= to, true, 'in sight');
                query.value = '9B9';
                query.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
                expect(textIn('hits'), 'not found'); query.blur(); press('Escape'); press('f');""",
            # 2F1 ends at 4, but 3F1 has to wait for 3B0, which ends at 6.
            "critical path": """const slack = (text) => shown.runs[0].slack[named(text)];
                expect([slack('3F1'), slack('2F1')], [0, 2]);
                const at = middleOf(named('2F1')); at.clientY -= 9;
                const before = colorAt(at); press('c');
                expect(JSON.stringify(colorAt(at)) !== JSON.stringify(before), true, 'faded'); press('c');
                expect(colorAt(at), before);""",
            "colours of the kinds": """const at = middleOf(named('0F0')); at.clientY -= 9;
                expect(colorAt(at), [0x8f, 0xb8, 0xe8]);""",
            "memory": """const height = painter.layout.height; press('m'); painter.draw();
                expect(painter.layout.height !== height, true); press('m');""",
            "dark": """press('t'); const box = surface.getBoundingClientRect();
                expect(shown.theme !== 'light' && colorAt({clientX: box.right - 3, clientY: box.bottom - 3})[0] < 40, true);
                press('t');""",
            "print": """window.dispatchEvent(new Event('beforeprint'));
                expect(surface.width >= 3 * 1000, true, 'finer');
                window.dispatchEvent(new Event('afterprint')); expect(surface.width < 3000, true);""",
            "help": "press('?'); expect(document.getElementById('keys').hidden, false); press('Escape');",
        })

    def test_program_has_lanes(self):
        page = self.page("1F1B", "--ranks", "2", "--microbatches", "2", "--comm", "0.5")
        self.check(page, {
            "receive": """pointer('pointermove', middleOf(named('1RECV_F0')));
                expect(textIn('tip').split('\\n').slice(0, 3), ['1RECV_F0, rank 1, step 1', '1 to 1.5, takes 0.5',
                    'starts with 0SEND_F0 of rank 0']);""",
            "unsharded": """const row = painter.layout.rows[0], at = middleOf(named('0F1'));
                pointer('pointermove', {clientX: at.clientX, clientY: surface.getBoundingClientRect().top + row.memory + 9});
                expect(textIn('tip').split('\\n')[2], 'unsharded stages 1, peak 1');""",
            "hide lanes": """press('l'); painter.draw(); expect(painter.layout.rows[0].lanes, 0); press('l');""",
        })

    def test_transfer_between_ranks(self):
        page = self.page("1F1B", "--ranks", "2", "--microbatches", "2", "--comm", "0.5", "--level", "compute_only")
        self.check(page, {"reason": """pointer('pointermove', middleOf(named('1F0')));
            expect(textIn('tip').split('\\n')[2], 'waits for 0F0 of rank 0, then 0.5 of transfer');"""})

    # Rank 0 waits for the gradient of microbatch 0 before it runs microbatch 1, which rank 1 needs first.
    def test_deadlock(self):
        page = self.page("-", expected=1, stdin="0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
        self.check(page, {
            "title": "expect(textIn('titles'), 'schedule: 2 ranks, 2 stages, 2 microbatches; stops at 2 after 2 of 8 actions');",
            "what never runs": """let missing = ''; try { named('0B0'); } catch (error) { missing = error.message; }
                expect(missing, 'no 0B0');""",
            "where it stops": """const at = middleOf(named('0F0'));
                pointer('pointermove', {...at, clientX: at.clientX + 0.75 * (painter.x(1) - painter.x(0))});
                expect(textIn('tip').split('\\n'), ['rank 0 stops before 0B0',
                    '`0B0` on rank 0 waits for `1B0` on rank 1, which comes after `1F1`']);""",
            "its label is in the picture": """const drawn = [], context = painter.context, own = context.fillText;
                context.fillText = function(text, x, y) {
                    drawn.push(text + (x + this.measureText(text).width <= painter.width ? ' fits' : ' is cut off'));
                    own.call(this, text, x, y);
                };
                painter.draw();
                context.fillText = own;
                expect(drawn.filter((text) => text.startsWith('! ')), ['! 0B0 fits', '! 1F1 fits']);""",
            "the activation stays": """const row = painter.layout.rows[0], at = middleOf(named('1F0'));
                pointer('pointermove', {clientX: at.clientX, clientY: surface.getBoundingClientRect().top + row.memory + 9});
                expect(textIn('tip').split('\\n')[1], 'activations 1, peak 1');""",
        })

    # Both are drawn for the same model on one axis: ZBV's stages are half as long.
    def test_compare(self):
        page = self.page("1F1B", "--ranks", "4", "--microbatches", "8", "--against", "ZBV", "--level", "compute_only")
        self.check(page, {
            "titles": """expect(textIn('titles').split('\\n').map((line) => line.slice(0, 10)),
                ['A: 1F1B: 4', 'B: ZBVZero']);""",
            "rows": "painter.draw(); expect(painter.layout.rows.map((row) => 'AB'[row.side] + row.rank).join(' '), "
                    "'A0 B0 A1 B1 A2 B2 A3 B3');",
            "one model": """const [a, b] = shown.runs;
                expect([a.end[named('0F0', a)], b.end[named('0F0', b)]], [1, 0.5]);""",
            "hover in the second": """const run = shown.runs[1];
                pointer('pointermove', middleOf(named('7F0', run), run));
                expect(textIn('tip').split('\\n')[0], '7F0, rank 0, step 7');""",
            "search in both": """const query = document.getElementById('query'); query.value = '0F7';
                query.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
                expect(textIn('hits'), '1 of 2'); query.blur(); press('n'); expect(textIn('hits'), '2 of 2');""",
        })

    def test_compounds(self):
        page = self.page("DualPipeV", "--ranks", "2", "--microbatches", "4", "--level", "compute_only")
        self.check(page, {
            "found by a part": """const run = shown.runs[0], action = [...run.parts.keys()][0];
                const part = run.parts.get(action)[1], query = document.getElementById('query');
                query.value = part.stage + part.kind.token + part.microbatch;
                query.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
                expect(textIn('panel').split(',')[0], textOf(run, action));""",
        })

    # 10^5 actions: as many pixels as columns are drawn, with what is under them.
    def test_large(self):
        page = self.page("Interleaved1F1B", "--ranks", "32", "--stages", "128", "--microbatches", "384",
                         "--level", "compute_only")
        self.assertLessEqual(len(page), 60_000 + 40 * 98_304)
        self.check(page, {
            "all drawn": """expect(shown.runs[0].ranks.length, 32);
                const at = middleOf(named('0F0')); expect(colorAt({...at, clientX: at.clientX + 2})[2] > 200, true);""",
            "zoom to one": """const query = document.getElementById('query'); query.value = '127B383';
                query.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
                pointer('pointermove', middleOf(named('127B383')));
                expect(textIn('tip').split(',')[0], '127B383');""",
        })


if __name__ == "__main__":
    unittest.main(verbosity=2)
