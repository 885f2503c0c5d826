"""Settings, and conversations as files, of the chat page in Chromium."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from chat_page import ChatPage, answer_with, chunk

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
# Labels, what is entered, and what goes into a request.
FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Temperature": ("0.5", {"temperature": 0.5}),
    "Max tokens": ("7", {"max_tokens": 7}),
    "top_p": ("0.9", {"top_p": 0.9}),
    "top_k": ("-1", {"top_k": -1}),
    "min_p": ("0.05", {"min_p": 0.05}),
    "Seed": ("0", {"seed": 0}),
    "Presence penalty": ("-1.5", {"presence_penalty": -1.5}),
    "Frequency penalty": ("0.25", {"frequency_penalty": 0.25}),
    "Repetition penalty": ("1.1", {"repetition_penalty": 1.1}),
    "Drafts a step": ("0", {"num_speculative_tokens": 0}),
    "Stop strings, one a line": ("###\n two words", {"stop": ["###", " two words"]}),
    "Reasoning effort": ("low", {"reasoning_effort": "low"}),
    "JSON schema of answers": (
        json.dumps(SCHEMA),
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMA},
            }
        },
    ),
    "Tools that the model may call": ("[]", {"tools": []}),
    "Other fields of requests": ('{"min_tokens": 2, "top_k": 5}', {"min_tokens": 2}),
}
OF_THE_PAGE: dict[str, Any] = {
    "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "go"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 0,
    "draft_trees": True,
}


def test_all_settings_are_sent_and_kept(chat: ChatPage) -> None:
    answer_with(chat, chunk(["yes"], finish="stop"))
    chat.setting("System prompt", "be")
    for label, (text, _) in FIELDS.items():
        chat.setting(label, text)
    chat.page.reload()
    chat.ask("go")
    expected = dict(OF_THE_PAGE)
    for _, fields in FIELDS.values():
        expected |= fields
    assert chat.asked == [expected]
    chat.button("Settings").click()
    chat.button("Reset all settings").click()
    chat.page.reload()
    chat.button("Again").click()
    chat.button("Version before").wait_for()
    seed = chat.asked[1].pop("seed")
    assert isinstance(seed, int)
    assert chat.asked[1] == {**OF_THE_PAGE, "messages": OF_THE_PAGE["messages"][1:]}


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("JSON schema of answers", "{open"),
        ("JSON schema of answers", "[1]"),
        ("JSON schema of answers", "null"),
        ("Tools that the model may call", "{}"),
        ("Other fields of requests", "[]"),
        ("top_p", "2"),
        ("Max tokens", "1.5"),
    ],
)
def test_a_wrong_setting_is_shown_and_nothing_sent(chat: ChatPage, label: str, text: str) -> None:
    chat.setting(label, text)
    chat.send("go")
    field = chat.page.get_by_label(label, exact=True)
    expect(field).to_be_focused()
    expect(field).to_be_in_viewport()
    assert field.evaluate("e => e.validationMessage") and chat.asked == []
    assert chat.prompt.input_value() == "go"
    chat.setting(label, "")
    answer_with(chat, chunk(["yes"], finish="stop"))
    chat.ask("go")
    assert len(chat.asked) == 1


# -- Export and import


def exported(chat: ChatPage, button: str) -> dict[str, Any]:
    with chat.page.expect_download() as download:
        chat.button(button).click()
    assert download.value.suggested_filename == "conversations.json"
    archive: dict[str, Any] = json.loads(Path(download.value.path()).read_text())
    return archive


def imported(chat: ChatPage, text: str) -> str:
    """Imports a file; returns what the page says of it."""
    status = chat.page.locator("#status")
    status.evaluate("e => (e.textContent = '')")
    chat.page.locator("#import-file").set_input_files(
        {"name": "c.json", "mimeType": "application/json", "buffer": text.encode()}
    )
    expect(status).not_to_be_empty()
    return status.inner_text()


def test_conversations_travel_as_a_file(chat: ChatPage) -> None:
    answer_with(
        chat, {"delta": {"reasoning": "hm"}}, chunk(["one"]), chunk([" answer"], finish="stop")
    )
    chat.ask("first")
    chat.button("Again").click()
    chat.button("Version before").click()
    chat.page.locator("#new-conversation").click()
    chat.ask("second")
    archive = exported(chat, "Export all")
    chat.button("second").hover()
    alone = exported(chat, "Export second")
    assert [len(each["conversations"]) for each in (archive, alone)] == [2, 1]
    names = chat.page.locator("#conversations button.open")
    for name in ("second", "first"):
        chat.page.once("dialog", lambda dialog: dialog.accept())
        chat.button(name).hover()
        chat.button(f"Delete {name}").click()
    expect(names).to_have_count(0)
    assert imported(chat, json.dumps(archive)) == "2 conversations imported."
    assert imported(chat, json.dumps(alone)) == "1 conversation imported."
    chat.page.reload()
    assert sorted(names.all_text_contents()) == ["first", "second", "second"]
    chat.button("first").click()
    assert str(chat.answer.locator(".body > .text").text_content()) == "one answer"
    expect(chat.page.get_by_role("group", name="Versions")).to_contain_text("1 of 2")
    chat.ask("more")
    assert [each["content"] for each in chat.asked[-1]["messages"]] == [
        "first",
        "one answer",
        "more",
    ]


def answer(**more: Any) -> dict[str, Any]:
    part = {"kind": "content", "text": "yes", "start": 0}
    content = {"parts": [part], "tokens": [], "steps": [], "finish": "stop", **more}
    return {"role": "assistant", "parent": 0, "answer": content}


QUESTION = {"role": "user", "parent": -1, "text": "go"}


def archive_of(*turns: Any) -> str:
    conversations = [{"title": "", "turns": turns}]
    return json.dumps({"format": "specdec_native conversations", "conversations": conversations})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "The file is not an export"),
        ("[]", "The file is not an export"),
        (json.dumps({"format": "another"}), "The file is not an export"),
        (json.dumps({"format": "specdec_native conversations"}), "conversations must be a list"),
        (archive_of({**QUESTION, "role": "<b>"}), 'conversations[0].turns[0].role must be "user"'),
        (archive_of({**QUESTION, "parent": 0}), "turns[0].parent must be the place of an earlier"),
        (archive_of({**QUESTION, "text": 5}), "turns[0].text must be a text"),
        (archive_of({**QUESTION, "files": [{}]}), "turns[0].files[0] needs a name and a text"),
        (archive_of(QUESTION, {"role": "assistant", "parent": 0}), "turns[1].answer must be an"),
        (archive_of(QUESTION, answer(parts=[{"kind": "html"}])), "answer.parts[0] is not a part"),
        (archive_of(QUESTION, answer(tokens=[1])), "answer.tokens[0] needs a text"),
        (archive_of(QUESTION, answer(steps=[{"at": 0, "nodes": [{}]}])), "nodes[0] is not a node"),
        (archive_of({"role": "tool", "parent": -1, "results": [1]}), "results[0] needs an id"),
    ],
)
def test_a_file_of_something_else_is_refused(chat: ChatPage, text: str, why: str) -> None:
    said = imported(chat, text)
    assert said.startswith("Not imported: ") and why in said
    expect(chat.page.locator("#conversations li")).to_have_count(0)


def test_a_file_like_those_that_are_refused_is_read(chat: ChatPage) -> None:
    assert imported(chat, archive_of(QUESTION, answer())) == "1 conversation imported."
    chat.button("go").click()
    assert chat.text == "yes"


def test_conversations_of_before_there_were_versions_are_read(chat: ChatPage) -> None:
    chat.page.evaluate(
        """() => {
            const answer = { text: "an answer", tokens: [], steps: [], finish: "stop" };
            const turns = [{ role: "user", text: "old" }, { role: "assistant", answer }];
            const kept = { id: "1", title: "old", changed: 1, turns };
            localStorage.setItem("specdec-native:/:conversation:1", JSON.stringify(kept));
        }"""
    )
    chat.page.reload()
    assert chat.text == "an answer"
