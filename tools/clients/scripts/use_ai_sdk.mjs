// ai-sdk: its OpenAI-compatible provider and its OpenAI provider (Responses): text, stream, a tool
// loop, an object, embeddings. Prints the same lines as steps.py.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import assert from "node:assert";
import { z } from "zod";

const { HEARTH_URL, HEARTH_CLIENT_MODEL: MODEL, HEARTH_CLIENT_CALLER: CALLER } = process.env;
const [CITY, WEATHER, ANSWER] = ["Lisbon", "sunny, 31 degrees", "It is sunny there."];
const baseURL = `${HEARTH_URL}/v1`;
const compatible = createOpenAICompatible({ name: "hearth", baseURL, supportsStructuredOutputs: true });
const openai = createOpenAI({ baseURL, apiKey: "none" });
const person = z.object({ name: z.string(), age: z.number().int() });
const tools = {
  get_weather: tool({
    description: "Current weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      assert.equal(city, CITY);
      return WEATHER;
    },
  }),
};

async function step(name, body) {
  try {
    await body();
    console.log(`step ok ${name}`);
  } catch (error) {
    process.exitCode = 1;
    console.error(error);
    console.log(`step failed ${name}`);
  }
}

for (const [name, provider] of [["openai-compatible", compatible], ["openai", openai]]) {
  await step(`${name} text`, async () => {
    const { text } = await generateText({
      model: provider(MODEL), prompt: "Name one sea.", maxOutputTokens: 16, maxRetries: 0,
    });
    assert(text);
  });
  await step(`${name} tool loop, streamed`, async () => {
    const result = streamText({
      model: provider(CALLER), prompt: `What is the weather in ${CITY}?`,
      tools, stopWhen: stepCountIs(4), maxRetries: 0,
    });
    let text = "";
    for await (const part of result.textStream) text += part;
    assert.equal(text, ANSWER);
  });
  await step(`${name} object`, async () => {
    const { output } = await generateText({
      model: provider(MODEL), prompt: "Ann is 41 years old. Give her name and age.",
      output: Output.object({ schema: person }), temperature: 0, maxOutputTokens: 200, maxRetries: 0,
    });
    person.parse(output);
  });
}
await step("embedMany", async () => {
  const { embeddings } = await embedMany({
    model: compatible.textEmbeddingModel(MODEL), values: ["one", "two"], maxRetries: 0,
  });
  assert.equal(embeddings.length, 2);
});
