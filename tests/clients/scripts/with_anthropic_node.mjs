// Anthropic's client for Node.js: messages.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";

import { URL, aborted, check, report } from "./outcomes.mjs";
import * as questions from "./questions.mjs";

// settings
const client = new Anthropic({ baseURL: URL, apiKey: "none" });
// end of settings

const user = (content) => [{ role: "user", content }];
const asked = { model: questions.MODEL, max_tokens: 256, temperature: 0 };
const tools = [
  {
    name: "get_weather",
    description: "Get the current weather in a city",
    input_schema: {
      type: "object",
      properties: { city: { type: "string", description: "Name of the city" } },
      required: ["city"],
    },
  },
];

check("text", "text", async () => {
  const message = await client.messages.create({ ...asked, messages: user(questions.HELLO) });
  assert.equal(message.content[0].text, questions.GREETING);
});

check("stream", "stream", async () => {
  const stream = client.messages.stream({ ...asked, messages: user(questions.SUM) });
  assert((await stream.finalText()).includes(questions.SUM_ANSWER));
});

check("tools", "tools", async () => {
  const messages = user(questions.WEATHER);
  const called = await client.messages.create({ ...asked, tools, messages });
  const use = called.content.at(-1);
  assert.deepEqual(use.input, { city: "Paris" });
  const content = JSON.stringify(questions.WEATHER_RESULT);
  const result = { type: "tool_result", tool_use_id: use.id, content };
  messages.push({ role: "assistant", content: called.content }, { role: "user", content: [result] });
  const said = await client.messages.create({ ...asked, tools, messages });
  assert.equal(said.content[0].text, questions.WEATHER_REPLY);
});

check("structured output", "structured output", async () => {
  const schema = questions.Treasure.toJSONSchema();
  const answer = await client.messages.create({
    ...asked, messages: user(questions.CHEST),
    output_config: { format: { type: "json_schema", schema } },
  });
  questions.Treasure.parse(JSON.parse(answer.content[0].text));
});

check("errors", "errors", async () => {
  const ask = (options) =>
    client.messages.create({ ...asked, messages: user(questions.HELLO), ...options });
  await assert.rejects(ask({ messages: [] }), Anthropic.BadRequestError);
  await assert.rejects(ask({ model: "another" }), Anthropic.NotFoundError);
});

check("cancellation", "cancellation", () =>
  aborted(async () => {
    const list = { type: "array", items: { type: "boolean" }, minItems: 1500 };
    const schema = {
      type: "object", properties: { list }, required: ["list"], additionalProperties: false,
    };
    const stream = client.messages.stream({
      ...asked, max_tokens: 3000, messages: user(questions.STORY),
      output_config: { format: { type: "json_schema", schema } },
    });
    for await (const _ of stream) break;
    stream.abort();
  }),
);

check("counted tokens", "counted tokens", async () => {
  const counted = await client.messages.countTokens({
    model: questions.MODEL, messages: user(questions.HELLO),
  });
  assert(counted.input_tokens > 0);
});

await report("@anthropic-ai/sdk");
