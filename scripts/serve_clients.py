#!/usr/bin/env python3
"""Others' clients in real use against a running `roci serve`: openai, anthropic, ollama and LangChain, streaming, with
tools and with JSON schemas. Run by scripts/check_serve.py; every function is one check.

  serve_clients.py URL
"""

import json
import sys

import anthropic
import ollama
import openai

URL = ""
CAPITAL = "What is the capital of France? Answer in one sentence."
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def check_person(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"name", "age"} and isinstance(value["age"], int), text


def check_weather(arguments: dict) -> None:
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("celsius", "fahrenheit"), arguments


def client() -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def openai_chat() -> None:
    answer = client().chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": CAPITAL}], temperature=0, max_tokens=20, logprobs=True,
        top_logprobs=2, seed=1,
    )
    assert "Paris" in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 3
    shown = answer.choices[0].logprobs.content
    assert "".join(token.token for token in shown) == answer.choices[0].message.content
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in shown)


def openai_stream() -> None:
    stream = client().chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": CAPITAL}], temperature=0, max_tokens=20, stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text, text
    assert len([chunk for chunk in chunks if chunk.choices]) > 5, "it came in one piece"
    assert chunks[-1].usage.total_tokens > 10 and not chunks[-1].choices


def openai_several() -> None:
    answer = client().chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "Say something."}], n=3, temperature=1.5, seed=4, max_tokens=6,
    )
    assert len({choice.message.content for choice in answer.choices}) > 1, answer
    # The same seed in the same circumstances: the prompt is in the cache both times.
    again = [
        client().chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Say something."}], seed=4, temperature=1, max_tokens=6,
        ).choices[0].message.content
        for _ in range(2)
    ]
    assert again[0] == again[1], f"the seed is not kept: {again}"


def openai_stop_and_bias() -> None:
    answer = client().chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": CAPITAL}], temperature=0, max_tokens=20, stop=[" Paris"],
    )
    assert "Paris" not in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"
    answer = client().chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": CAPITAL}], temperature=0, max_tokens=20, logit_bias={" Paris": -100},
    )
    assert "Paris" not in answer.choices[0].message.content, answer


def openai_schema() -> None:
    answer = client().chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "Describe a person as JSON."}], max_tokens=60, seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}},
    )
    check_person(answer.choices[0].message.content)
    answer = client().chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "JSON, please: {\"a\": 1}"}], max_tokens=60, temperature=0,
        response_format={"type": "json_object"},
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].message.content.lstrip().startswith("{")


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city", "parameters": WEATHER}}


def openai_tools() -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client().chat.completions.create(
        model="smollm2", messages=messages, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=80,
    )
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather" and answer.choices[0].finish_reason == "tool_calls", answer
    check_weather(json.loads(call.function.arguments))
    stream = client().chat.completions.create(
        model="smollm2", messages=messages, tools=[TOOL], temperature=0, max_tokens=80, stream=True,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    )
    name, arguments, finish = "", "", None
    for chunk in stream:
        for part in chunk.choices[0].delta.tool_calls or []:
            name += part.function.name or ""
            arguments += part.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert name == "get_weather" and finish == "tool_calls", (name, finish)
    check_weather(json.loads(arguments))
    # What a tool answered is read.
    messages += [
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "It is 21 degrees and sunny in Paris."},
    ]
    last = client().chat.completions.create(model="smollm2", messages=messages, tools=[TOOL], temperature=0, max_tokens=30)
    assert last.choices[0].message.content is not None or last.choices[0].message.tool_calls


def openai_responses() -> None:
    first = client().responses.create(model="smollm2", input="My name is Ada. " + CAPITAL, temperature=0, max_output_tokens=20)
    assert "Paris" in first.output_text, first
    events = list(client().responses.create(
        model="smollm2", input="And of Italy?", previous_response_id=first.id, temperature=0, max_output_tokens=20, stream=True,
    ))
    assert events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text and text == events[-1].response.output_text
    assert events[-1].response.usage.input_tokens > first.usage.input_tokens, "the conversation was not carried on"
    assert client().responses.retrieve(first.id).output_text == first.output_text
    assert client().responses.input_items.list(first.id).data[0].type == "message"
    client().responses.delete(first.id)
    try:
        client().responses.retrieve(first.id)
        raise AssertionError("it is still there")
    except openai.NotFoundError:
        pass


def openai_background() -> None:
    made = client().responses.create(model="smollm2", input=CAPITAL, temperature=0, max_output_tokens=20, background=True)
    assert made.status in ("queued", "in_progress"), made
    events = list(client().responses.retrieve(made.id, stream=True))
    assert events[-1].type == "response.completed" and "Paris" in events[-1].response.output_text, events[-1]
    later = list(client().responses.retrieve(made.id, stream=True, starting_after=events[3].sequence_number))
    assert [event.sequence_number for event in later] == [event.sequence_number for event in events[4:]]
    assert client().responses.retrieve(made.id).status == "completed"
    long = client().responses.create(model="smollm2", input="Count to ten thousand.", max_output_tokens=3000, background=True)
    assert client().responses.cancel(long.id).status in ("cancelled", "completed")
    streamed = list(client().responses.create(
        model="smollm2", input=CAPITAL, temperature=0, max_output_tokens=20, background=True, stream=True,
    ))
    assert streamed[-1].type == "response.completed", streamed[-1]


def openai_kept() -> None:
    made = [
        client().chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": CAPITAL}], temperature=0, max_tokens=20, store=True,
            metadata={"city": city},
        )
        for city in ("Paris", "Rome")
    ]
    kept = client().chat.completions
    assert [one.id for one in kept.list(metadata={"city": "Rome"})] == [made[1].id]
    assert [one.id for one in kept.list(limit=1)] == [made[0].id, made[1].id], "pages follow each other"
    assert kept.retrieve(made[0].id).choices[0].message.content == made[0].choices[0].message.content
    assert kept.update(made[0].id, metadata={"city": "Lyon"}).id == made[0].id
    assert [one.content for one in kept.messages.list(made[0].id)] == [CAPITAL]
    assert all(kept.delete(one.id).deleted for one in made) and not list(kept.list())


def openai_scores() -> None:
    text = "The capital of France is"
    made = client().completions.create(model="smollm2", prompt=text, temperature=0, max_tokens=1, logprobs=1).choices[0]
    echo = client().completions.create(model="smollm2", prompt=text + made.text, max_tokens=0, echo=True, logprobs=1).choices[0]
    assert echo.text == text + made.text and echo.logprobs.token_logprobs[0] == 0
    assert abs(echo.logprobs.token_logprobs[-1] - made.logprobs.token_logprobs[0]) < 0.05, (made, echo)
    best = client().completions.create(model="smollm2", prompt=text, max_tokens=6, n=2, best_of=5, seed=1)
    assert len(best.choices) == 2 and best.usage.completion_tokens > 12


def openai_others() -> None:
    answer = client().completions.create(model="smollm2", prompt="One, two, three,", temperature=0, max_tokens=4, echo=True)
    assert answer.choices[0].text.startswith("One, two, three, four"), answer
    vectors = client().embeddings.create(model="smollm2", input=["a cat", "a kitten", "the stock exchange"]).data
    dot = lambda a, b: sum(x * y for x, y in zip(vectors[a].embedding, vectors[b].embedding))  # noqa: E731
    assert abs(dot(0, 0) - 1) < 1e-3 and dot(0, 1) > dot(0, 2), (dot(0, 1), dot(0, 2))
    assert "smollm2" in [model.id for model in client().models.list()]
    try:
        client().chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "word " * 20000}])
        raise AssertionError("a prompt that is too long was taken")
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error


def anthropic_messages() -> None:
    claude = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    message = claude.messages.create(
        model="smollm2", max_tokens=20, extra_body={"temperature": 0}, messages=[{"role": "user", "content": CAPITAL}],
    )
    assert "Paris" in message.content[0].text and message.stop_reason == "end_turn", message
    with claude.messages.stream(
        model="smollm2", max_tokens=20, extra_body={"temperature": 0}, system="You are brief.", messages=[{"role": "user", "content": CAPITAL}],
    ) as stream:
        text = "".join(stream.text_stream)
    assert text == stream.get_final_message().content[0].text and text
    tool = {"name": "get_weather", "description": "The weather in a city", "input_schema": WEATHER}
    message = claude.messages.create(
        model="smollm2", max_tokens=80, extra_body={"temperature": 0}, tools=[tool], tool_choice={"type": "any"},
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
    )
    assert message.stop_reason == "tool_use", message
    check_weather(next(block for block in message.content if block.type == "tool_use").input)
    with claude.messages.stream(
        model="smollm2", max_tokens=80, extra_body={"temperature": 0}, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"},
        messages=[{"role": "user", "content": "What is the weather in Rome?"}],
    ) as stream:
        check_weather(next(block for block in stream.get_final_message().content if block.type == "tool_use").input)
    count = claude.messages.count_tokens(model="smollm2", messages=[{"role": "user", "content": CAPITAL}])
    assert count.input_tokens > 10
    try:
        claude.messages.create(model="smollm2", max_tokens=5, messages=[])
        raise AssertionError("no messages were taken")
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error


def ollama_client() -> None:
    llama = ollama.Client(host=URL)
    options = {"temperature": 0, "num_predict": 20}
    answer = llama.chat(model="smollm2", messages=[{"role": "user", "content": CAPITAL}], options=options)
    assert "Paris" in answer.message.content and answer.done, answer
    parts = list(llama.chat(model="smollm2", messages=[{"role": "user", "content": CAPITAL}], options=options, stream=True))
    assert len(parts) > 5 and "Paris" in "".join(part.message.content for part in parts) and parts[-1].eval_count > 3
    assert "four" in llama.generate(model="smollm2", prompt="One, two, three,", raw=True, options=options).response
    check_person(llama.generate(
        model="smollm2", prompt="Describe a person.", format=PERSON, options={"seed": 1, "num_predict": 60},
    ).response)
    tool = {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": WEATHER}}
    llama.chat(model="smollm2", messages=[{"role": "user", "content": "Hi"}], tools=[tool], options=options)
    assert len(llama.embed(model="smollm2", input=["a", "b"]).embeddings) == 2
    assert llama.list().models[0].model == "smollm2" and llama.ps().models[0].model == "smollm2"
    assert llama.show("smollm2").modelinfo["general.architecture"] == "llama"


def langchain() -> None:
    from typing import Literal

    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel, Field

    chat = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model="smollm2", temperature=0, max_tokens=60, max_retries=0)
    assert "Paris" in chat.invoke(CAPITAL).content
    assert "Paris" in "".join(part.content for part in chat.stream(CAPITAL))

    class Person(BaseModel):
        """A person."""

        name: str = Field(max_length=12)
        age: int = Field(ge=0, le=120)

    person = chat.with_structured_output(Person, method="json_schema").invoke("Describe a person.")
    assert isinstance(person, Person), person

    @tool
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    calls = chat.bind_tools([get_weather], tool_choice="get_weather").invoke("What is the weather in Paris?").tool_calls
    assert calls[0]["name"] == "get_weather" and isinstance(calls[0]["args"]["city"], str), calls


CHECKS = [
    openai_chat, openai_stream, openai_several, openai_stop_and_bias, openai_schema, openai_tools, openai_responses,
    openai_background, openai_kept, openai_scores, openai_others, anthropic_messages, ollama_client, langchain,
]


def main() -> int:
    global URL
    URL = sys.argv[1]
    n_failed = 0
    for check in CHECKS:
        try:
            check()
            print(f"ok      {check.__name__}", flush=True)
        except Exception as error:  # every check is told of
            n_failed += 1
            print(f"FAILED  {check.__name__}: {type(error).__name__}: {error}"[:1500], flush=True)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
