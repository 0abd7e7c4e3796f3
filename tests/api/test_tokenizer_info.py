"""GET /tokenizer_info: enough to render a chat and to tokenise it as the server does."""

import jinja2


def test_a_client_renders_a_chat_as_the_server_does(http, generator, text):
    info = http.get("/tokenizer_info").json()
    messages = [{"role": "user", "content": "hello"}]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    rendered = environment.from_string(info["chat_template"]).render(
        messages=messages, add_generation_prompt=True, **special_tokens(info)
    )
    told = http.post("/tokenize", json={"prompt": rendered, "add_special_tokens": False}).json()
    counted = http.post("/tokenize", json={"messages": messages}).json()
    assert told["tokens"] == counted["tokens"]


def test_special_tokens_are_those_of_the_checkpoint(http, text):
    info = http.get("/tokenizer_info").json()
    assert special_tokens(info) == text.tokenizer.special_tokens
    assert "eos_token" in info
    end = str(text.tokenizer.token_id(info["eos_token"]))
    assert info["added_tokens_decoder"][end]["content"] == info["eos_token"]
    assert info["model_max_length"] == 512
    assert http.head("/tokenizer_info").status_code == 200


def special_tokens(info):
    named = {name for name in info if name.endswith("_token")}
    return {name: info[name] for name in named if info[name] is not None}
