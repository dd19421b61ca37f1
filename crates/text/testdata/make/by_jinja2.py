"""Renders conversations through chat templates by Python's jinja2, set up as Hugging Face's transformers sets it up.

`python by_jinja2.py CONVERSATIONS.json TEMPLATE.jinja...` prints {template: [result]}, a result being as in
by_transformers.py: the text, {"refused": message} or {"failed": exception}. Needs PyPI's jinja2 alone, so a test can
run it on the spot.
"""
import datetime, json, os, sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}` marks the answers for training and prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


# Where the clock stands in the tests: noon of 26 July 2024.
NOW = datetime.datetime(2024, 7, 26, 12, 0, 0)
env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = NOW.strftime

conversations = json.load(open(sys.argv[1], encoding="utf-8"))
golden = {}
for path in sys.argv[2:]:
    results = []
    for c in conversations:
        try:
            template = env.from_string(open(path, newline="", encoding="utf-8").read())
            results.append(template.render(
                messages=c["messages"], tools=c.get("tools"), documents=None,
                add_generation_prompt=c["add_generation_prompt"], bos_token="<BOS>", eos_token="<EOS>", **c.get("extra", {})))
        except jinja2.exceptions.TemplateError as error:
            kind = "refused" if type(error) is jinja2.exceptions.TemplateError else "failed"
            results.append({kind: str(error)})
        except Exception as error:
            results.append({"failed": f"{type(error).__name__}: {error}"})
    golden[os.path.basename(path).removesuffix(".jinja")] = results
json.dump(golden, sys.stdout, ensure_ascii=False)
