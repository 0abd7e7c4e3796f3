// The AI SDK: text, objects and tools, by each of its providers that knows a base URL.

import assert from "node:assert/strict";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, isStepCount, streamText, tool } from "ai";

import { URL, aborted, check, report } from "./outcomes.mjs";
import * as questions from "./questions.mjs";

// settings
const tandem = createOpenAICompatible({
  name: "tandem",
  baseURL: `${URL}/v1`,
  supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: `${URL}/v1`, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: `${URL}/v1`, apiKey: "none" });
const models = {
  chat: tandem("tandem-mini"),
  "openai's chat": openai.chat("tandem-mini"),
  responses: openai("tandem-mini"),
  messages: anthropic("tandem-mini"),
};
// end of settings

const greedy = { temperature: 0, maxOutputTokens: 256, maxRetries: 0 };

function checkAll(feature, run) {
  for (const [name, model] of Object.entries(models)) {
    check(feature, `${feature}, ${name}`, () => run(model));
  }
}

checkAll("text", async (model) => {
  const { text } = await generateText({ model, prompt: questions.HELLO, ...greedy });
  assert.equal(text, questions.GREETING);
});

checkAll("stream", async (model) => {
  const { textStream } = streamText({ model, prompt: questions.SUM, ...greedy });
  let said = "";
  for await (const piece of textStream) said += piece;
  assert(said.includes(questions.SUM_ANSWER));
});

checkAll("tools", async (model) => {
  const get_weather = tool({
    description: "Get the current weather in a city",
    inputSchema: questions.City,
    execute: ({ city }) => {
      assert.equal(city, "Paris");
      return questions.WEATHER_RESULT;
    },
  });
  const { text } = await generateText({
    model, prompt: questions.WEATHER, tools: { get_weather }, stopWhen: isStepCount(3), ...greedy,
  });
  assert.equal(text, questions.WEATHER_REPLY);
});

checkAll("structured output", async (model) => {
  const { output } = await generateText({
    model, prompt: questions.CHEST, ...greedy,
    output: Output.object({ schema: questions.Treasure }),
  });
  questions.Treasure.parse(output);
});

checkAll("errors", async (model) => {
  const asked = generateText({ model, prompt: "word ".repeat(20_000), ...greedy });
  await assert.rejects(asked, (error) => APICallError.isInstance(error) && error.statusCode === 400);
});

check("cancellation", "cancellation", () =>
  aborted(async () => {
    const left = new AbortController();
    const { textStream } = streamText({
      model: models.chat, prompt: questions.STORY, maxOutputTokens: 3000,
      providerOptions: { tandem: { ignore_eos: true } }, abortSignal: left.signal,
    });
    for await (const _ of textStream) left.abort();
  }),
);

await report("ai");
