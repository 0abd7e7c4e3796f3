"""What a server says when it is ready: where it is, and how to try it."""

from dataclasses import dataclass

from tandem.commands.options import DEFAULT_URL


@dataclass(frozen=True, slots=True)
class Greeting:
    """`name` is the model's as clients call it; `stops` says how to stop it."""

    name: str
    url: str
    needs_key: bool
    stops: str = "Ctrl-C stops the server."

    def __str__(self) -> str:
        url = self.url
        header = ' -H "Authorization: Bearer $TANDEM_API_KEY"' if self.needs_key else ""
        body = f'{{"model": "{self.name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
        keys = " --api-key $TANDEM_API_KEY" if self.needs_key else ""
        local = keys + ("" if url == DEFAULT_URL else f" --url {url}")
        return (
            f"\n[bold green]Ready.[/bold green] {self.name} is served on [bold]{url}/v1[/bold] "
            f"(docs: {url}/docs, metrics: {url}/metrics)\n\n"
            f"  .venv/bin/tandem chat{local}\n"
            f"  curl {url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\\n"
            f"    -d '{body}'\n\n"
            f"{self.stops}\n"
        )
