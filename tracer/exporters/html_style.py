"""The style of the page; each rule stands under `.tracer-report`: a notebook keeps its own."""

# Labels in bars shrink with the page: below 600 pixels nobody can read them. Wide tables scroll by
# themselves, so that words stay whole and the page as wide as the screen.
# Of every page: nothing is loaded and nothing runs, whatever a name in it says.
POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
CSS = """
.tracer-report{--bg:#fff;--fg:#1c1c1c;--dim:#5f5f5f;--line:#d9d9d9;--card:#f6f6f6;
--attention:#005fff;--ffn:#c79a00;--communication:#870087;--other:#8a8a8a;--overhead:#a83200;
--on-deep:#fff;--on-pale:#000;background:var(--bg);color:var(--fg);
font:14px/1.5 system-ui,sans-serif;overflow-wrap:break-word;max-width:1100px;margin:0 auto;
padding:24px}
@media (prefers-color-scheme:dark){.tracer-report{--bg:#161616;--fg:#e6e6e6;--dim:#a0a0a0;
--line:#3a3a3a;--card:#202020;--attention:#3d9bff;--ffn:#e6dc6e;--communication:#c77bc7;
--other:#a8a8a8;--overhead:#ff7b30;--on-deep:#000}}
.tracer-report h1{font-size:20px;line-height:1.4;margin:0 0 4px}
.tracer-report h2{font-size:15px;margin:28px 0 6px}
.tracer-report p{margin:4px 0}.tracer-report .dim{color:var(--dim)}
.tracer-report svg{display:block;width:100%;background:var(--card)}
.tracer-report svg text{font:11px system-ui,sans-serif;fill:var(--fg)}
.tracer-report .on-attention,.tracer-report .on-communication,
.tracer-report .on-overhead{fill:var(--on-deep)}
.tracer-report .on-ffn,.tracer-report .on-other{fill:var(--on-pale)}
@media (max-width:600px){.tracer-report [class^=on-]{display:none}}
.tracer-report .g-attention{fill:var(--attention)}.tracer-report .g-ffn{fill:var(--ffn)}
.tracer-report .g-communication{fill:var(--communication)}
.tracer-report .g-other{fill:var(--other)}.tracer-report .g-overhead{fill:var(--overhead)}
.tracer-report rect{stroke:var(--bg);stroke-width:.5}
.tracer-report .key{display:inline-block;width:11px;height:11px;margin:0 5px 0 14px}
.tracer-report .wide,.tracer-report pre{overflow-x:auto}
.tracer-report table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.tracer-report th,.tracer-report td{text-align:right;padding:2px 8px;
border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
.tracer-report th{color:var(--dim);font-weight:normal}
.tracer-report .name{text-align:left;white-space:normal;max-width:60ch;
unicode-bidi:isolate}
.tracer-report details td:last-child{white-space:normal;min-width:28ch}
.tracer-report .word{text-align:left}
.tracer-report .part .name{padding-left:26px}.tracer-report .group td{font-weight:600}
.tracer-report .card{background:var(--card);padding:8px 12px;margin:8px 0;
border-left:4px solid var(--line)}
.tracer-report .critical{border-left-color:var(--overhead)}
.tracer-report .warning{border-left-color:var(--ffn)}
.tracer-report summary{cursor:pointer;color:var(--dim)}
"""
