"""Answers of the chat page in Chromium: reasoning, calls, files, figures, and going on."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from chat_page import CHAT, ChatPage, answer_with, chunk, node

PLACES = """async ([choices, finish]) => {
    const { Answer } = await import("/page/answer.js");
    const answer = new Answer();
    for (const choice of choices) answer.add(choice);
    answer.end(finish);
    return answer.tokens.map(({ start, end }) => answer.transcript.slice(start, end));
}"""


def reasoning(tokens: list[str], text: str, name: str = "reasoning") -> dict[str, Any]:
    return {**chunk(tokens), "delta": {name: text}}


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    """A piece of a call; the first one has a name."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    first = {"id": f"call-{index}", "type": "function"} if name else {}
    return {"delta": {"tool_calls": [{"index": index, **first, "function": function}]}}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_folded(chat: ChatPage, name: str) -> None:
    tree = {"at": 1, "nodes": [node("Let me", -1, 1, "ngram", 0.5, True)]}
    answer_with(
        chat,
        {**reasoning(["<think>", "Let me", " see"], "Let me see", name), "draft_trees": [tree]},
        reasoning([".\n\n", "</think>", "\n\n"], ".", name),
        chunk(["It is", " **so**."], finish="stop"),
    )
    chat.ask("go")
    folded = chat.answer.locator("details.reasoning")
    expect(folded.get_by_text("Let me see.")).not_to_be_visible()
    folded.locator("summary").click()
    expect(folded.get_by_text("Let me see.")).to_be_visible()
    assert folded.locator("mark").all_text_contents() == ["Let me"]
    assert "Reasoning (" in str(folded.locator("summary").text_content())
    texts = chat.answer.locator(".body > .text")
    assert texts.all_text_contents() == ["It is so."]
    chat.page.reload()
    expect(texts).to_have_text(["It is so."])
    assert chat.answer.locator(".body mark").all_text_contents() == ["Let me"]
    chat.ask("and?")  # reasoning does not go back to the model
    assert chat.asked[-1]["messages"][1] == {"role": "assistant", "content": "It is **so**."}


@pytest.mark.parametrize(
    ("choices", "places"),
    [
        (
            [
                reasoning(["<think>", "\n", "a", " b", ".\n"], "a b."),
                chunk(["</think>", "c"], content="c"),
            ],
            ["", "", "a", " b", ".", "", "c"],
        ),
        ([reasoning([], "hidden"), chunk(["the", " text"])], ["the", " text"]),
        ([chunk(["\n\nfirst", "."], content="first.")], ["first", "."]),
        (
            [chunk(["I look. ", "<tool>", '{"a"', ": 1}"], content="I look."), call(0, "{}", "f")],
            ["I look.", "", "", ""],
        ),
    ],
)
def test_tokens_find_their_places_in_parts(
    module_page: Page, choices: list[dict[str, Any]], places: list[str]
) -> None:
    assert module_page.evaluate(PLACES, [choices, "stop"]) == places


def test_calls_are_shown_and_take_results(chat: ChatPage) -> None:
    chat.setting("Tools that the model may call", '[{"type": "function", "function": {}}]')
    answer_with(
        chat,
        reasoning([], "Hm."),
        chunk(["I look."]),
        call(0, "", "weather"),
        call(0, '{"city": '),
        call(1, '{"zone": "<b>"}', "time"),
        call(0, '"Rome"}'),
        {"delta": {}, "finish_reason": "tool_calls"},
    )
    chat.ask("go")
    assert chat.asked[0]["tools"] == [{"type": "function", "function": {}}]
    calls = chat.answer.get_by_role("figure", name="Call of a tool")
    assert calls.locator(".name").all_text_contents() == ["weather", "time"]
    arguments = [json.loads(text) for text in calls.locator("code").all_text_contents()]
    assert arguments == [{"city": "Rome"}, {"zone": "<b>"}]
    chat.page.get_by_label("Result of weather").fill("sunny")
    chat.page.get_by_label("Result of time").fill("noon")
    chat.page.unroute(CHAT)
    answer_with(chat, chunk(["It is sunny."], finish="stop"))
    chat.button("Send results").click()
    expect(chat.page.get_by_role("article", name="Answer")).to_have_count(2)
    chat.wait()
    assert chat.text == "It is sunny."
    called, *results = chat.asked[1]["messages"][1:]
    assert called["role"] == "assistant" and called["content"] == "I look."
    assert called["reasoning"] == "Hm."
    assert [each["id"] for each in called["tool_calls"]] == ["call-0", "call-1"]
    assert called["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    }
    assert results == [
        {"role": "tool", "tool_call_id": "call-0", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call-1", "content": "noon"},
    ]
    chat.page.reload()
    given = chat.page.get_by_role("article", name="Results of calls")
    assert given.locator("pre").all_text_contents() == ["sunny", "noon"]


GROWING_CALL = """async (pieces) => {
    const { Answer } = await import("/page/answer.js");
    const { AnswerBody } = await import("/page/part-views.js");
    const answer = new Answer();
    const body = new AnswerBody(answer);
    return pieces.map((piece) => {
        answer.add(piece);
        body.draw();
        return body.node.querySelector("pre").textContent;
    });
}"""


def test_arguments_show_as_they_grow(module_page: Page) -> None:
    pieces = [call(0, '{"a', "f"), call(0, '": [1,'), call(0, "2]}")]
    end = {"delta": {}, "finish_reason": "tool_calls"}
    shown = module_page.evaluate(GROWING_CALL, [*pieces, end])
    assert shown == ['{"a', '{"a": [1,', '{"a": [1,2]}', '{\n  "a": [\n    1,\n    2\n  ]\n}']


def file(name: str, content: bytes) -> Any:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def test_text_files_go_with_a_message(chat: ChatPage) -> None:
    answer_with(chat, chunk(["yes"], finish="stop"))
    field = chat.page.locator("#attach-file")
    names = chat.page.get_by_role("list", name="Attached files").get_by_role("listitem")
    field.set_input_files(
        [file("a.py", b"def f():\n    return '```'\n"), file("b.txt", "ü".encode())]
    )
    expect(names).to_have_text(["a.py", "b.txt"])
    field.set_input_files([file("picture.png", b"\x89PNG\x00"), file("long.txt", b"x" * 2**21)])
    expect(chat.page.locator("#status")).to_have_text("long.txt is longer than 1 MiB.")
    field.set_input_files([file("picture.png", b"\x89PNG\x00")])
    expect(chat.page.locator("#status")).to_have_text("picture.png is not a text file.")
    chat.button("Remove b.txt").click()
    expect(names).to_have_text(["a.py"])
    chat.ask("what is it?")
    content = "a.py:\n\n````py\ndef f():\n    return '```'\n````\n\nwhat is it?"
    assert chat.asked[0]["messages"] == [{"role": "user", "content": content}]
    expect(names).to_have_count(0)
    question = chat.page.get_by_role("article", name="You")
    chat.page.reload()
    question.locator("summary").click()
    assert question.locator("pre").inner_text() == "def f():\n    return '```'\n"
    # Files stay with a message that is changed.
    chat.button("Edit").click()
    chat.page.get_by_label("Changed message").fill("and now?")
    chat.button("Send instead").click()
    expect(chat.page.get_by_role("group", name="Versions")).to_have_count(1)
    assert chat.asked[1]["messages"][0]["content"] == content.replace("what is it?", "and now?")


def test_the_chart_shows_the_tokens_of_each_step(chat: ChatPage) -> None:
    trees = [
        {"at": 1, "nodes": [node("b", -1, 1, "ngram", 1, True), node("c", 0, 2, "ngram", 1, True)]},
        {"at": 4, "nodes": [node("x", -1, 1, "ngram", 1, False)]},
    ]
    answer_with(
        chat, chunk(["a"]), chunk(["b", "c", "d"], trees=trees[:1]), chunk(["e"], trees=trees[1:])
    )
    chat.ask("go")
    chart = chat.page.locator("#chart").get_by_role("img")
    expect(chart).to_have_attribute("aria-label", "Tokens of the last 3 steps: 1, 3, 1")
    heights = [float(bar.get_attribute("height") or 0) for bar in chart.locator("rect").all()]
    assert heights[1] == 3 * heights[0] and heights[2] == heights[0]


def test_the_factor_over_plain_is_kept(chat: ChatPage) -> None:
    chat.ask("go")
    factor = chat.page.locator("#strip-factor")
    expect(chat.page.locator("#strip-step")).to_be_visible()
    expect(factor).not_to_be_visible()
    chat.button("Compare").click()
    expect(chat.answer.locator(".verdict")).to_contain_text("times as fast")
    said = str(chat.answer.locator(".verdict").text_content())
    chat.button("Send").wait_for()
    expect(factor).to_have_text(said.split(": ")[1].split(maxsplit=1)[0])
    kept = factor.text_content()
    chat.page.reload()
    expect(factor).to_have_text(str(kept))


def test_the_heading_names_the_model_and_its_context(chat: ChatPage) -> None:
    expect(chat.page.get_by_role("heading", name="tiny", level=1)).to_be_visible()
    expect(chat.page.locator("#context")).to_have_text("96 tokens")
    assert chat.page.title() == "tiny"
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, **chunk(["a"], finish="stop")}]}]
    chunks.append({"choices": [], "usage": {"total_tokens": 24}})
    events = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks)
    chat.page.route(
        CHAT,
        lambda route: route.fulfill(
            body=f"{events}data: [DONE]\n\n", content_type="text/event-stream"
        ),
    )
    chat.ask("go")
    assert chat.asked[0]["stream_options"] == {"include_usage": True}
    expect(chat.page.locator("#strip-context")).to_have_text("25%")


def test_an_example_is_asked(chat: ChatPage) -> None:
    answer_with(chat, chunk(["yes"], finish="stop"))
    examples = chat.page.get_by_role("region", name="Examples")
    examples.get_by_role("button").filter(has_text="Make a table").click()
    chat.wait()
    assert "planets" in chat.asked[0]["messages"][0]["content"]
    expect(examples).to_have_count(0)
    chat.page.set_viewport_size({"width": 320, "height": 480})
    chat.page.locator("#new-conversation").click()
    expect(examples.get_by_role("button")).to_have_count(4)
    expect(examples.get_by_role("heading")).to_be_in_viewport()


def test_the_end_is_one_button_away(chat: ChatPage) -> None:
    answer_with(chat, *[chunk([f"Line {i}.\n\n"]) for i in range(100)])
    chat.ask("go")
    button, messages = chat.button("To the end"), chat.page.locator("#messages")
    expect(button).not_to_be_visible()
    messages.evaluate("e => e.scrollTop = 0")
    button.click()
    expect(button).not_to_be_visible()
    expect(messages).to_be_focused()
    expect(chat.button("Compare")).to_be_in_viewport()


def test_an_answer_that_was_cut_off_goes_on(chat: ChatPage) -> None:
    tree = {"at": 1, "nodes": [node(" b", -1, 1, "ngram", 0.5, True)]}
    answer_with(chat, chunk(["a"]), chunk([" b", " c"], trees=[tree], finish="length"))
    chat.ask("go")
    chat.page.reload()
    chat.page.unroute(CHAT)
    answer_with(chat, chunk([" d"]), chunk([" b", "."], trees=[tree], finish="stop"))
    chat.button("Continue").click()
    expect(chat.answer.locator(".figures")).to_contain_text("6 tokens")
    assert chat.text == "a b c d b."
    assert chat.asked[-1]["messages"][1] == {"role": "assistant", "content": "a b c"}
    assert chat.asked[-1]["continue_final_message"] and not chat.asked[-1]["add_generation_prompt"]
    assert chat.asked[-1]["seed"] == chat.asked[0]["seed"]
    for _ in range(2):
        marks = chat.answer.locator("> .body mark")
        assert [each.get_attribute("data-token") for each in marks.all()] == ["1", "4"]
        for name in ("Continue", "Compare"):
            expect(chat.button(name)).not_to_be_visible()
        chat.page.reload()
    expect(chat.page.get_by_role("article")).to_have_count(2)
