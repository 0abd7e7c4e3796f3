"""How the API reference looks: one style sheet, for light and dark screens and for narrow ones."""

STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #e2e6ec; --page: #fff; --tint: #f5f7fa;
  --link: #1457b8; --get: #0b7a4b; --post: #8a4b00; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe5ee; --soft: #98a3b3; --line: #2c3442;
  --page: #12161d; --tint: #1a202a; --link: #7db1ff; --get: #5fd3a0; --post: #f0b060; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body { margin: 0; display: grid; grid-template-columns: 17.5rem minmax(0, 1fr);
  background: var(--page); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
nav { position: sticky; top: 0; height: 100vh; overflow-y: auto; padding: 2rem 1.25rem;
  background: var(--tint); border-right: 1px solid var(--line); font-size: 13px; }
nav ul { list-style: none; margin: .25rem 0 1.25rem; padding: 0; }
nav li a { display: block; padding: .15rem 0; color: var(--ink); }
main { max-width: 72rem; padding: 2rem 2.5rem 6rem; }
h1 { margin: 0 0 .75rem; font-size: 1.8rem; }
h1 small { color: var(--soft); font-weight: 400; font-size: 1rem; }
h2 { margin: 3rem 0 0; padding-bottom: .3rem; border-bottom: 2px solid var(--line);
  font-size: 1.3rem; }
h3 { margin: 0; font-size: 1.05rem; }
h3 code { font-size: 1.05rem; font-weight: 600; }
i { color: var(--soft); font-style: normal; }
h4 { margin: 1.25rem 0 .4rem; color: var(--soft); font-size: .75rem; font-weight: 600;
  text-transform: uppercase; letter-spacing: .06em; }
section { padding: 1.75rem 0 .25rem; }
p { margin: .5rem 0; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
code, pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { margin: 0; padding: .8rem 1rem; overflow-x: auto; background: var(--tint);
  border: 1px solid var(--line); border-radius: 6px; user-select: all; cursor: copy; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { color: var(--soft); font-size: .8rem; font-weight: 600; }
td:first-child { white-space: nowrap; }
td:nth-child(2) { max-width: 17rem; }
td:nth-child(3):not(:last-child) { white-space: nowrap; }
td:nth-child(4) { width: 55%; min-width: 16rem; }
details { margin-top: .6rem; color: var(--soft); }
summary { cursor: pointer; }
.get, .post { display: inline-block; min-width: 2.4rem; color: var(--get); font-size: .8em;
  font-weight: 700; }
.post { color: var(--post); }
@media (max-width: 50rem) { body { display: block; } nav { position: static; height: auto; }
  main { padding: 1.25rem; } }
"""
