// OpenAI's client for Node.js: chat, completions, responses.

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";

import { URL, aborted, check, report } from "./outcomes.mjs";
import * as questions from "./questions.mjs";

// settings
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none" });
// end of settings

const { MODEL: model, HELLO, SUM, WEATHER, Treasure } = questions;
const user = (content) => [{ role: "user", content }];
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the current weather in a city",
      parameters: {
        type: "object",
        properties: { city: { type: "string", description: "Name of the city" } },
        required: ["city"],
      },
    },
  },
];

check("text", "text", async () => {
  const answer = await client.chat.completions.create({
    model, messages: user(HELLO), temperature: 0,
  });
  assert.equal(answer.choices[0].message.content, questions.GREETING);
});

check("stream", "stream", async () => {
  const chunks = await client.chat.completions.create({
    model, messages: user(SUM), temperature: 0, stream: true,
  });
  let said = "";
  for await (const chunk of chunks) said += chunk.choices[0]?.delta.content ?? "";
  assert(said.includes(questions.SUM_ANSWER));
});

check("tools", "tools", async () => {
  const asked = { model, tools, temperature: 0 };
  const called = await client.chat.completions.create({ ...asked, messages: user(WEATHER) });
  const { message } = called.choices[0];
  const [call] = message.tool_calls;
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  const content = JSON.stringify(questions.WEATHER_RESULT);
  const result = { role: "tool", tool_call_id: call.id, content };
  const said = await client.chat.completions.create({
    ...asked, messages: [...user(WEATHER), message, result],
  });
  assert.equal(said.choices[0].message.content, questions.WEATHER_REPLY);
});

check("tools", "tools that the client runs", async () => {
  const get_weather = {
    ...tools[0].function,
    parse: JSON.parse,
    function: () => questions.WEATHER_RESULT,
  };
  const runner = client.chat.completions.runTools({
    model, messages: user(WEATHER), temperature: 0,
    tools: [{ type: "function", function: get_weather }],
  });
  assert.equal(await runner.finalContent(), questions.WEATHER_REPLY);
});

check("structured output", "structured output", async () => {
  const answer = await client.chat.completions.parse({
    model, messages: user(questions.CHEST), temperature: 0,
    response_format: zodResponseFormat(Treasure, "treasure"),
  });
  Treasure.parse(answer.choices[0].message.parsed);
});

check("errors", "errors", async () => {
  const ask = (options) =>
    client.chat.completions.create({ model, messages: user(HELLO), ...options });
  await assert.rejects(ask({ max_tokens: -1 }), OpenAI.BadRequestError);
  await assert.rejects(ask({ model: "another" }), OpenAI.NotFoundError);
});

check("cancellation", "cancellation", () =>
  aborted(async () => {
    const chunks = await client.chat.completions.create({
      model, messages: user(questions.STORY), max_tokens: 3000, ignore_eos: true, stream: true,
    });
    for await (const _ of chunks) break;
  }),
);

check("models", "models", async () => {
  assert.equal((await client.models.retrieve(model)).id, model);
});

check("completions", "completions", async () => {
  const answer = await client.completions.create({ model, prompt: "Once", max_tokens: 12 });
  assert(answer.choices[0].text);
});

check("responses", "responses", async () => {
  const answer = await client.responses.create({ model, input: HELLO, temperature: 0 });
  assert.equal(answer.output_text, questions.GREETING);
});

check("responses", "responses in a stream", async () => {
  const events = client.responses.stream({ model, input: HELLO, temperature: 0 });
  let said = "";
  for await (const event of events) {
    if (event.type === "response.output_text.delta") said += event.delta;
  }
  assert.equal(said, questions.GREETING);
});

check("responses", "responses of a form", async () => {
  const answer = await client.responses.parse({
    model, input: questions.CHEST, temperature: 0,
    text: { format: zodTextFormat(Treasure, "treasure") },
  });
  Treasure.parse(answer.output_parsed);
});

await report("openai");
