// The `openai` package for Node: chat, streams, tools, parsed output, responses, errors.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "local", maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello." }];
const limits = { model: "local", temperature: 0, max_tokens: 24 };

const whole = (await client.chat.completions.create({ messages, ...limits })).choices[0].message.content;
let joined = "";
for await (const chunk of await client.chat.completions.create({ messages, stream: true, ...limits })) {
  joined += chunk.choices[0]?.delta?.content ?? "";
}
assert.ok(whole);
assert.equal(whole, joined);

const parameters = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] };
const runner = client.chat.completions.runTools({
  model: "local",
  messages: [{ role: "user", content: "Weather in Paris?" }],
  tools: [{ type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: () => "Sunny." } }],
  tool_choice: { type: "function", function: { name: "weather" } },
  max_tokens: 80,
});
const call = await runner.finalFunctionToolCall();
assert.equal(call.name, "weather");
assert.equal(typeof JSON.parse(call.arguments).city, "string");

const Person = z.object({ name: z.string().max(20), age: z.number().int() });
const parsed = await client.chat.completions.parse({
  model: "local",
  messages: [{ role: "user", content: "Ada is 36 years old." }],
  response_format: zodResponseFormat(Person, "person"),
  max_tokens: 80,
});
assert.equal(typeof parsed.choices[0].message.parsed.age, "number");

const response = await client.responses.create({ model: "local", input: "Say hello.", max_output_tokens: 24 });
assert.ok(response.output_text);
assert.ok((await client.models.list()).data[0].id);
await assert.rejects(client.chat.completions.create({ model: "local", messages: [] }), OpenAI.BadRequestError);

const aborted = await client.chat.completions.create({ messages, stream: true, model: "local" });
for await (const _ of aborted) aborted.controller.abort();
assert.equal((await client.chat.completions.create({ messages, ...limits })).choices[0].message.content, whole);
console.log("chat, stream, tools, parse, responses, models, errors, abort");
