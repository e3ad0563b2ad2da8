// Perfetto's trace processor, and of its HTTP what perfetto.trace_processor.TraceProcessor loads and queries with:
//
//     node trace_processor.js FOLDER    the one of Perfetto's UI that holds engine_bundle.js and trace_processor*.wasm
//
// The UI runs the trace processor as WebAssembly in a web worker, engine_bundle.js; here node is that worker.  Requests
// and answers are length-delimited protobuf, `TraceProcessorRpcStream { repeated TraceProcessorRpc msg = 1; }` of
// perfetto/trace_processor/trace_processor.proto.  Prints the port of 127.0.0.1 that it serves; ends when stdin ends.
"use strict";
const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");

// of TraceProcessorRpc: the number of the method, and the fields of its argument (the request's body) and its result
const ENDPOINTS = {
  "/parse": { method: 1, argument: 101, result: 201 },
  "/notify_eof": { method: 2, result: 212 },
  "/query": { method: 3, argument: 103, result: 203 },
};
const MESSAGE = 1; // field of TraceProcessorRpcStream
const METHOD = 2; // field of TraceProcessorRpc
const VARINT = 0, BYTES = 2; // wire types

// --- protobuf ---
function varint(value) {
  const digits = [];
  for (; value > 127; value = Math.floor(value / 128)) digits.push(128 + (value % 128));
  return Buffer.from([...digits, value]);
}

function bytesField(field, value) {
  return Buffer.concat([varint(8 * field + BYTES), varint(value.length), value]);
}

// [field, value] of each field of a message that has only integers and bytes
function* fields(message) {
  let at = 0;
  const number = () => {
    for (let value = 0, scale = 1; ; scale *= 128) {
      const digit = message[at++];
      value += scale * (digit % 128);
      if (digit < 128) return value;
    }
  };
  while (at < message.length) {
    const key = number(), wire = key % 8, value = number();
    if (wire !== VARINT && wire !== BYTES) throw new Error(`unexpected wire type ${wire}`);
    yield [(key - wire) / 8, wire === VARINT ? value : message.subarray(at, (at += value))];
  }
}

// --- the engine ---
// A function from the bytes of a request to those of its answer.
async function engine(folder) {
  const XMLHttpRequest = class { // with which a worker loads its WebAssembly
    open(method, name) { this.response = fs.readFileSync(path.join(folder, name)); }
    send() {}
  };
  const bundle = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
  const self = { location: { href: "" } };
  const worker = new Function("self", "WorkerGlobalScope", "XMLHttpRequest", "process", bundle);
  worker(self, Object, XMLHttpRequest, undefined); // without `process` it does not take itself to be in node
  const port = {};
  self.onmessage({ data: port });
  await new Promise(setImmediate); // its start goes on in callbacks that are queued by now
  return (request) => {
    const answers = [];
    port.postMessage = (part) => answers.push(part);
    port.onmessage({ data: request });
    return Buffer.concat(answers);
  };
}

// The bytes of a method's result.  One that comes in several messages is joined, which is how protobuf merges them.
function call(rpc, { method, argument, result }, body) {
  const header = Buffer.from([8 * METHOD + VARINT, method]);
  const request = argument ? Buffer.concat([header, bytesField(argument, body)]) : header;
  const results = [];
  for (const [, message] of fields(rpc(bytesField(MESSAGE, request)))) {
    for (const [field, value] of fields(message)) if (field === result) results.push(value);
  }
  if (!results.length) throw new Error(`the trace processor does not answer method ${method}`);
  return Buffer.concat(results);
}

// --- HTTP ---
async function body(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts);
}

async function main() {
  const rpc = await engine(process.argv[2]);
  const server = http.createServer(async (request, response) => {
    const content = await body(request);
    const endpoint = ENDPOINTS[request.url];
    // an error ends the process, so that whoever asks sees it whatever he does with an answer
    if (endpoint) response.end(call(rpc, endpoint, content));
    else response.writeHead(404).end();
  });
  server.keepAliveTimeout = 0; // a client may think as long as it likes
  server.listen(0, "127.0.0.1", () => console.log(server.address().port));
  process.stdin.on("end", () => process.exit()).resume();
}

main();
