// The `@anthropic-ai/sdk` package: messages, streams, tools, errors.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "local", maxRetries: 0 });
const request = { model: "local", max_tokens: 24, messages: [{ role: "user", content: "Say hello." }] };

const whole = await client.messages.create({ ...request, temperature: 0 });
const streamed = await client.messages.stream({ ...request, temperature: 0 }).finalMessage();
assert.ok(whole.content[0].text);
assert.equal(whole.content[0].text, streamed.content[0].text);

const input_schema = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] };
const called = await client.messages.create({
  ...request,
  max_tokens: 80,
  tools: [{ name: "weather", input_schema }],
  tool_choice: { type: "tool", name: "weather" },
});
assert.equal(called.content.at(-1).name, "weather");
await assert.rejects(client.messages.create({ ...request, messages: [] }), Anthropic.BadRequestError);
console.log("messages, stream, tools, errors");
