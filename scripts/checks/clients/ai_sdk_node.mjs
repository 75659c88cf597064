// The `ai` package with `@ai-sdk/openai-compatible`, which OpenCode uses: text, stream, tools.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const phobos = createOpenAICompatible({ name: "phobos", baseURL: `${process.argv[2]}/v1`, apiKey: "local" });
const request = { model: phobos("local"), prompt: "Say hello.", temperature: 0, maxOutputTokens: 24, maxRetries: 0 };

const whole = await generateText(request);
let joined = "";
for await (const part of streamText(request).textStream) joined += part;
assert.ok(whole.text);
assert.equal(whole.text, joined);
assert.ok(whole.usage.outputTokens > 0);

const inputSchema = jsonSchema({
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
});
const called = await generateText({
  ...request,
  prompt: "Weather in Paris?",
  maxOutputTokens: 80,
  tools: { weather: tool({ description: "The weather in a city", inputSchema }) },
  toolChoice: "required",
});
assert.equal(called.toolCalls[0].toolName, "weather");
assert.equal(typeof called.toolCalls[0].input.city, "string");
console.log("text, stream, tools");
