// What questions.py asks, for scripts of Node.js.

import { z } from "zod";

export const MODEL = "tandem-mini";
export const HELLO = "Hello!";
export const GREETING = "Hello! Nice to meet you. How can I help you today?";
export const SUM = "What is 12 + 30?";
export const SUM_ANSWER = "Answer: 42";
export const STORY = "Tell me a story.";
export const WEATHER = "What is the weather in Paris?";
export const WEATHER_RESULT = { temperature: 17, sky: "cloudy" };
export const WEATHER_REPLY = "It is cloudy in Paris with 17 degrees.";
export const CHEST = "What is in the chest?";
export const City = z.object({ city: z.string().describe("Name of the city") });
export const Treasure = z.strictObject({
  colour: z.enum(["copper", "silver", "gold"]),
  is_heavy: z.boolean(),
});
