// The tokens of a prompt as the model got it, of which the first may have come from the cache.
import { html, nothing } from "./lit-html.js";
import { send } from "./server.js";
import { count } from "./words.js";

// Of a longer part of a prompt the middle is left out.
const MOST_SHOWN = 2000;

export class Prompt {
  // Of a call with this body.
  constructor({ model, messages }, draw) {
    this.body = { model, messages, return_token_strs: true };
    this.draw = draw;
    this.names = null;
    this.problem = "";
    this.asking = false;
  }

  async read() {
    if (this.names || this.asking) return;
    this.asking = true;
    try {
      this.names = (await send("tokenize", this.body)).token_strs;
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof TypeError ? "The server does not answer." : error.message;
    }
    this.asking = false;
    this.draw();
  }
}

export function promptView(prompt, tokens, cached) {
  return html`
    <details class="prompt" @toggle=${(event) => event.target.open && prompt.read()}>
      <summary>Prompt: ${count(tokens)} tokens, ${count(cached)} cached</summary>
      ${prompt.names ? promptTokens(prompt.names, tokens, cached) : nothing}
      ${prompt.problem ? html`<p class="problem" role="alert">${prompt.problem}</p>` : nothing}
    </details>`;
}

function promptTokens(names, tokens, cached) {
  if (names.length !== tokens) return html`<p class="note">It was made by another template than /tokenize has.</p>`;
  const part = (pieces) => {
    const left = pieces.length - MOST_SHOWN;
    if (left <= 0) return pieces.map(tokenView);
    const half = MOST_SHOWN / 2;
    return html`${pieces.slice(0, half).map(tokenView)}<i> … ${count(left)} more … </i>${pieces.slice(-half).map(tokenView)}`;
  };
  const texts = textsOf(names);
  return html`
    <p class="note">${cached
      ? html`<mark class="token">Tinted</mark> ones came from the cache; the others were computed.`
      : "All of them were computed."}</p>
    <p class="tokens" tabindex="0" role="group" aria-label="Tokens of the prompt">${cached
      ? html`<span class="unseen">From the cache:</span><mark>${part(texts.slice(0, cached))}</mark>`
      : nothing}<span class="unseen">Computed:</span>${part(texts.slice(cached))}</p>`;
}

const tokenView = (text) => html`<span class="token">${text}</span>`;

// Vocabularies of bytes have a letter for each: its own where that can be seen, or else one from
// U+0100 on.
const BYTES = new Map();
for (let byte = 0, hidden = 0x100; byte < 256; byte++) {
  const seen = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  BYTES.set(String.fromCharCode(seen ? byte : hidden++), byte);
}

// What tokens stand for. A letter of several tokens stands with the last of them.
function textsOf(names) {
  const ofBytes = names.some((name) => /[ĠĊ]/.test(name));
  const decoder = new TextDecoder();
  const encoder = new TextEncoder();
  const bytesOf = (name) => {
    const bytes = [...name].map((letter) => BYTES.get(letter));
    if (ofBytes && !bytes.includes(undefined)) return new Uint8Array(bytes);
    const byte = /^<0x([0-9A-F]{2})>$/.exec(name);
    return byte ? new Uint8Array([parseInt(byte[1], 16)]) : encoder.encode(name.replaceAll("▁", " "));
  };
  return names.map((name) => decoder.decode(bytesOf(name), { stream: true }));
}
