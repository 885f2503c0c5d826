"""The files of the chat page: headers, what the files name, who may have them."""

import html.parser
import re
from pathlib import Path

import pytest

from server_world import World, serving
from specdec_native import Engine
from specdec_serve.http import page
from specdec_serve.http.protocol.chat import ChatCompletionRequest

FOLDER = Path(page.__file__).parent / "page"
FILES = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]
# Names of SVG and MathML, which nothing loads.
NAMESPACES = r"http://www\.w3\.org/(?:2000/svg|1998/Math/MathML)"


def source(name: str) -> str:
    return (FOLDER / name).read_text()


class Elements(html.parser.HTMLParser):
    """Attributes of all elements, by name of the element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def all(self, attribute: str) -> list[str]:
        return [value for _, each in self.found if (value := each.get(attribute)) is not None]


INDEX = Elements(source("index.html"))


def test_the_page_is_served_as_it_lies(world: World) -> None:
    assert world.client.get("/").text == source("index.html")
    for name in FILES:
        answer = world.client.get(f"/page/{name}")
        assert answer.status_code == 200 and answer.text == source(name)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/main.js", "text/javascript; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
    ],
)
def test_browsers_are_told_what_may_run(world: World, path: str, kind: str) -> None:
    headers = world.client.get(path).headers
    assert headers["content-type"] == kind
    assert headers["x-content-type-options"] == "nosniff"
    policy = dict(
        directive.strip().split(" ", 1)
        for directive in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert set(policy) <= {
        *("default-src", "base-uri", "form-action", "frame-ancestors", "object-src"),
        "require-trusted-types-for",
    }  # none that allows more than default-src


def test_a_browser_keeps_what_has_not_changed(world: World) -> None:
    tag = world.client.get("/page/main.js").headers["etag"]
    again = world.client.get("/page/main.js", headers={"if-none-match": tag})
    assert again.status_code == 304 and again.content == b""
    assert world.client.get("/page/api.js", headers={"if-none-match": tag}).status_code == 200


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2fpage.py", "..%2F..%2Foptions.py", "%2e%2e/page.py", "a/b", ""]
)
def test_nothing_else_is_served(world: World, name: str) -> None:
    assert world.client.get(f"/page/{name}").status_code == 404


def test_the_page_needs_no_key_and_can_be_left_out(engine: Engine) -> None:
    with serving(engine, api_keys=("secret",)) as world:
        assert world.client.get("/").status_code == 200
        assert world.client.get("/page/main.js").status_code == 200
        assert world.client.get("/v1/models").status_code == 401
    with serving(engine, page=False) as world:
        assert world.client.get("/").status_code == 404
        assert world.client.get("/page/main.js").status_code == 404


def test_the_page_behind_a_proxys_path(engine: Engine) -> None:
    with serving(engine, root_path="/llm") as world:
        for start in ("", "/llm"):
            assert world.client.get(f"{start}/").text == source("index.html")
            assert world.client.get(f"{start}/page/main.js").text == source("main.js")


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host(name: str) -> None:
    text = re.sub(NAMESPACES, "", source(name))
    assert re.findall(r"""(?:\w+:|["'(=]\s*)//[\w.]+""", text) == []
    assert not re.search(r"@import|@font-face|sendBeacon|XMLHttpRequest|WebSocket", text)


def test_another_host_would_be_noticed() -> None:
    for text in ('src="https://a.example/x"', "url('//a.example')", "fetch(`http://a.example`)"):
        assert re.findall(r"""(?:\w+:|["'(=]\s*)//[\w.]+""", text)


def test_what_files_name_is_there() -> None:
    named = {*INDEX.all("src"), *INDEX.all("href")} - {"#prompt"}
    styles = ("theme.css", "page.css", "messages.css")
    files = ("main.js", "theme.js", *styles, "icon.svg")
    assert named == {f"page/{name}" for name in files}
    for script in SCRIPTS:
        for name in re.findall(r'from "\./([^"]+)"', source(script)):
            assert name in FILES, f"{script} imports {name}"
    used = {name for each in SCRIPTS for name in re.findall(r'from "\./([^"]+)"', source(each))}
    assert set(SCRIPTS) - used == {"main.js"}  # all are needed


def test_every_id_that_scripts_use_is_there() -> None:
    ids = INDEX.all("id")
    assert len(set(ids)) == len(ids)
    used = {
        name
        for script in SCRIPTS
        for name in re.findall(r'(?:byId|put)\(\s*"([^"]+)"|"#([\w-]+)', source(script))
        for name in name
        if name
    }
    used |= {*INDEX.all("for"), *INDEX.all("popovertarget")}
    assert used <= set(ids) and len(used) > 15


def test_fields_and_buttons_have_names() -> None:
    """Labels around the fields, or for them; text in the buttons, or a label of theirs."""
    text = source("index.html")
    for tag, attributes in INDEX.found:
        if tag in {"input", "textarea", "select"} and "hidden" not in attributes:
            name = attributes.get("name") or ""
            around = rf'<label[^>]*>\s*\w[^<]+<{tag}\s[^>]*name="{name}"'
            for_it = f'for="{attributes.get("id")}"'
            assert for_it in text or (name and re.search(around, text)), attributes
    named = re.findall(r'<button[^>]*aria-label="\w|<button[^>]*>\s*\w', text)
    assert len(named) == text.count("<button")
    assert 'lang="en"' in text and INDEX.all("aria-live") == ["polite"]


def test_settings_are_fields_of_requests() -> None:
    """All but those that the page itself reads: the server knows them by their names."""
    own = {"system", "schema", "other", "theme", "key"}
    names = set(INDEX.all("name")) - {"viewport", "color-scheme"}
    assert own <= names
    assert names - own <= set(ChatCompletionRequest.model_fields) and len(names) > 15


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_never_becomes_html(name: str) -> None:
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|Function\("
    assert not re.search(sinks, source(name))
    assert re.search(sinks, "a.innerHTML = b")
