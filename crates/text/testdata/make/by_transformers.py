"""Renders conversations.json through chat templates by Hugging Face's transformers, with the clock stopped.

`python by_transformers.py CONVERSATIONS.json TEMPLATE.jinja... > golden/templates.json`. A result is the text, or
{"refused": message} where the template called raise_exception, or {"failed": exception} where it broke.
"""
import datetime, json, os, sys

import jinja2
from transformers.utils import chat_template_utils as utils


class Stopped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 0, 0)


utils.datetime = Stopped
conversations = json.load(open(sys.argv[1]))
golden = {}
for path in sys.argv[2:]:
    source = open(path, newline="").read()
    results = []
    for c in conversations:
        try:
            out = utils.render_jinja_template(
                conversations=[c["messages"]], tools=c.get("tools"), chat_template=source,
                add_generation_prompt=c["add_generation_prompt"], bos_token="<BOS>", eos_token="<EOS>", **c.get("extra", {}))
            rendered = out[0] if isinstance(out, tuple) else out
            results.append(rendered[0])
        except jinja2.exceptions.TemplateError as error:
            kind = "refused" if type(error) is jinja2.exceptions.TemplateError else "failed"
            results.append({kind: str(error)})
        except Exception as error:
            results.append({"failed": f"{type(error).__name__}: {error}"})
    golden[os.path.basename(path).removesuffix(".jinja")] = results
print("{\n" + ",\n".join(json.dumps(k) + ": [\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in v) + "]" for k, v in golden.items()) + "\n}")
